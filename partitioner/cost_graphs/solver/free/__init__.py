"""Any placement that keeps colocated items together: search, and proofs by set bounds and prices."""
