"""From a placement to a model that runs that way: every op, every variable and every slot on its planned device."""
