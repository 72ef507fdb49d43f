"""From a placement to a placed model: every op, every variable and every slot on its planned device."""
