"""How the batch axis flows through a traced step: whether rows influence each other, and how the loss adds them up."""
