"""A factory that raises."""


def build_model():
    raise RuntimeError("the weights are at home")
