"""MODEL to a keras.Model: the forms accepted, the order of discovery, every refusal and its advice."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import keras
import pytest

from partitioner.capture.source.load import load_model, split_source
from partitioner.errors import ModelError

HEAD = "import keras\n\ndef net(units=1, name='net'):\n"
HEAD += "    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)], name=name)\n\n"
AFTER_HEAD = 6  # the line that follows it

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a file of the working directory, behind `HEAD` unless told otherwise, and give its name."""
    monkeypatch.chdir(tmp_path)
    known, paths = set(sys.modules), list(sys.path)

    def write(body: str, name: str = "user_net.py", head: str = HEAD) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + dedent(body), encoding="utf-8")
        return name

    yield write
    assert sys.path == paths, "sys.path is as it was"
    for name in set(sys.modules) - known:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


def refused(source: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load_model(source)
    error = caught.value
    assert error.exit_code == 3
    assert error.help, "every refusal names a way out"
    return error


# --- the order of discovery ------------------------------------------------------------------------


def test_the_variable_model_wins_over_other_models(write: Write):
    loaded = load_model(write("other = net(name='other')\nmodel = net(name='chosen')\n"))
    assert loaded.model.name == "chosen"
    assert loaded.source == "user_net.py"
    assert loaded.where == f"user_net.py:{AFTER_HEAD + 1} (model)"


def test_the_line_that_binds_the_name_last_outside_functions_is_shown(write: Write):
    body = "model = None\n\ndef build(model):\n    model = net()\n    return model\n\n"
    body += "if True:\n    model = build(model)\n\ndef later():\n    model = 1\n    return model\n"
    assert load_model(write(body)).where == f"user_net.py:{AFTER_HEAD + 7} (model)"


def test_the_only_model_of_any_name(write: Write):
    loaded = load_model(write("classifier = net(name='c')\nalias = classifier\n\ndef build_model():\n    return 1\n"))
    assert loaded.model.name == "c"
    assert loaded.where == f"user_net.py:{AFTER_HEAD} (classifier)"


@pytest.mark.parametrize("name", ["build_model", "create_model", "make_model", "get_model"])
def test_a_factory_is_called_without_arguments(write: Write, name: str):
    loaded = load_model(write(f"def {name}(units=7):\n    model = net(units)\n    return model\n"))
    assert loaded.model.output_shape == (None, 7)
    assert loaded.where == f"user_net.py:{AFTER_HEAD} ({name})"


def test_one_factory_under_two_names_is_one(write: Write):
    assert load_model(write("def build_model():\n    return net(4)\n\nget_model = build_model\n")).model


def test_a_variable_model_that_is_none_of_keras_is_passed_over(write: Write):
    assert load_model(write("model = 'resnet'\n\ndef build_model():\n    return net(5)\n")).model.output_shape[1] == 5


# --- names and literal calls -----------------------------------------------------------------------


def test_a_name_chooses_among_several(write: Write):
    file = write("a = net(name='a')\nb = net(name='b')\n")
    loaded = load_model(f"{file}:b")
    assert (loaded.model.name, loaded.where) == ("b", f"user_net.py:{AFTER_HEAD + 1} (b)")


def test_a_literal_call_passes_its_arguments(write: Write):
    file = write("def build(units, *, name='x', sizes=()):\n    return net(units + sum(sizes), name)\n")
    loaded = load_model(f"{file}:build(2, name='a_b', sizes=[3, -1])")
    assert (loaded.model.name, loaded.model.output_shape) == ("a_b", (None, 4))


def test_a_class_is_instantiated(write: Write):
    file = write(
        """
        class Net(keras.Model):
            def __init__(self, units=2):
                super().__init__(name=f'n{units}')
        """
    )
    assert load_model(f"{file}:Net").model.name == "n2"
    assert load_model(f"{file}:Net(units=5)").model.name == "n5"


def test_colons_in_arguments_and_directories(write: Write):
    file = write("def build(opts):\n    return net(opts['a:b'])\n", name="odd:dir/user_net.py")
    assert load_model(f"{file}:build({{'a:b': 6}})").model.output_shape == (None, 6)


@pytest.mark.parametrize(
    ("source", "path", "name"),
    [
        (r"C:\models\mlp.py:build(depth=50)", r"C:\models\mlp.py", "build(depth=50)"),
        (r"C:\models\mlp.py", r"C:\models\mlp.py", None),
        ("a/mlp.py:build(x='a.py:b')", "a/mlp.py", "build(x='a.py:b')"),
        ("mlp:build", "mlp", "build"),
        ("a/b", "a/b", None),
        ("mlp.py:build(" + "'x'," * 100 + ")", "mlp.py", "build(" + "'x'," * 100 + ")"),
    ],
)
def test_splitting_what_does_not_exist(write: Write, tmp_path: Path, source: str, path: str, name: str | None):
    assert split_source(source) == (tmp_path.resolve() / path, name)


# --- how the file is run ---------------------------------------------------------------------------


def test_the_file_runs_under_its_own_name_and_its_classes_can_be_pickled(write: Write):
    file = write(
        """
        if __name__ == "__main__":
            raise SystemExit("run as a script")

        class Marker:
            pass

        def build_model():
            return net(name=__name__)
        """
    )
    loaded = load_model(file)
    assert loaded.model.name == "user_net"
    marker = sys.modules["user_net"].Marker()
    assert type(pickle.loads(pickle.dumps(marker))) is type(marker)


def test_siblings_are_found_at_import_and_in_the_factory(write: Write):
    write("WIDTH = 9\n", name="project/sizes_a.py", head="")
    write("NAME = 'late'\n", name="project/sizes_b.py", head="")
    file = write(
        """
        from sizes_a import WIDTH

        def build_model():
            from sizes_b import NAME
            return net(WIDTH, NAME)
        """,
        name="project/user_net.py",
    )
    model = load_model(file).model
    assert (model.name, model.output_shape) == ("late", (None, 9))


def test_relative_imports_work_inside_a_package(write: Write):
    write("", name="project/user_pkg/__init__.py", head="")
    write("WIDTH = 8\n", name="project/user_pkg/sizes.py", head="")
    file = write("from .sizes import WIDTH\nmodel = net(WIDTH)\n", name="project/user_pkg/user_net.py")
    assert load_model(file).model.output_shape == (None, 8)
    assert "user_pkg.user_net" in sys.modules


def test_a_package_is_a_module_too(write: Write):
    write("WIDTH = 4\n", name="user_pkg/sizes.py", head="")
    file = write("from .sizes import WIDTH\nmodel = net(WIDTH)\n", name="user_pkg/__init__.py")
    loaded = load_model(file)
    assert loaded.model.output_shape == (None, 4)
    assert loaded.where == f"user_pkg/__init__.py:{AFTER_HEAD + 1} (model)"


def test_prints_go_to_stderr_and_our_arguments_stay_ours(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "argv", ["partition", "user_net.py", "--batch-size", "64"])
    body = "import sys\nprint('args', sys.argv[1:])\n"
    load_model(write(body + "def build_model():\n    print('building')\n    return net()\n"))
    out, err = capsys.readouterr()
    assert out == ""
    assert "args []" in err
    assert "building" in err
    assert sys.argv[1:] == ["user_net.py", "--batch-size", "64"]


def test_loading_writes_nothing_and_sees_an_edit(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    load_model(write("model = net(1)\n"))
    assert load_model(write("model = net(2)\n")).model.output_shape == (None, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["user_net.py"]


def test_files_of_one_name_in_two_directories(write: Write):
    first, second = (
        write("model = net(1)\n", name="a/user_net.py"),
        write("model = net(2)\n", name="b/user_net.py"),
    )
    assert [load_model(file).model.output_shape[1] for file in (first, second, first)] == [1, 2, 1]


def test_examples_come_from_the_file_or_from_its_factory(write: Write):
    loaded = load_model(write("model = net()\nexample_inputs = [[1, 2, 3]]\nexample_targets = [[4]]\n"))
    assert (loaded.example_inputs, loaded.example_targets) == ([[1, 2, 3]], [[4]])
    write("example_inputs = 'theirs'\n\ndef build_model():\n    return net()\n", name="user_library.py")
    loaded = load_model(write("from user_library import build_model\n", name="user_main.py", head=""))
    assert (loaded.example_inputs, loaded.example_targets) == ("theirs", None)
    assert loaded.where == "user_main.py:1 (build_model)"


def test_a_keras_file_keeps_its_compile_state(write: Write):
    file = write("model = net(2)\nmodel.compile(optimizer='adam', loss='mse')\n")
    load_model(file).model.save("saved.keras")
    loaded = load_model("saved.keras")
    assert type(loaded.model.optimizer).__name__ == "Adam"
    assert loaded.model.loss == "mse"
    assert loaded.where == "saved.keras (net)"


# --- refusals: the file ----------------------------------------------------------------------------


def test_a_missing_file_suggests_the_close_one(write: Write):
    write("model = net()\n", name="models/mlp_net.py")
    error = refused("models/mlp_ent.py")
    assert str(error) == (
        "no such file: models/mlp_ent.py\n   |  models holds mlp_net.py\n   help: partition models/mlp_net.py"
    )
    assert refused("models/mlp_ent.py:build(depth=2)").message == "no such file: models/mlp_ent.py"
    assert refused("modles/mlp_net.py").notes == ("there is no directory modles",)
    assert refused("models/mlp_net").help == "partition models/mlp_net.py"


def test_commands_quote_what_a_shell_would_split(write: Write):
    write("encoder = net()\ndecoder = net()\n", name="my models/net.py")
    assert refused("my models/ent.py").help == 'partition "my models/net.py"'
    assert (refused("my models/net.py").help or "").endswith('partition "my models/net.py:encoder"')


def test_another_keras_backend_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    assert refused(write("model = net()\n")).help == "KERAS_BACKEND=tensorflow partition user_net.py"


def test_what_is_no_python_and_no_keras_file(write: Write):
    for name, kind, help in [
        ("net.h5", "an HDF5 file", "convert it: keras.models.load_model('net.h5').save('net.keras')"),
        ("net.ipynb", "a notebook", "jupyter nbconvert --to script net.ipynb && partition net.py"),
        ("net.onnx", "a .onnx file", "name the file that builds the model: partition model.py"),
        (
            "costs.json",
            "a JSON file (a cost graph?)",
            "name the file that builds the model: partition model.py",
        ),
        (
            "graph.txt",
            "a text file (a cost graph?)",
            "name the file that builds the model: partition model.py",
        ),
    ]:
        error = refused(write("{}", name=name, head=""))
        assert error.message == f"{name} is {kind}, expected a .py or .keras file"
        assert error.help == help


def test_a_plan_and_a_placed_model_say_what_they_are_for(write: Write):
    plan = '{"schema": "partition-plan/1", "model": {"source": "examples/mlp.py"}}'
    write(plan, name="out/plan.json", head="")
    write("", name="out/placed_model/saved_model.pb", head="")
    write("", name="exported/saved_model.pb", head="")
    write("", name="folder/my_net.py", head="")
    assert refused("out/plan.json").help == "plan its model anew: partition examples/mlp.py"
    assert refused("out").help == "load it to train or run it: partitioner.load('out')"
    assert refused("out/placed_model").help == "load it to train or run it: partitioner.load('out')"
    assert "SavedModel" in refused("exported").message
    assert refused("folder").help == "name a file in it: partition folder/my_net.py"


def test_a_file_that_hides_a_module(write: Write):
    error = refused(write("model = 1\n", name="keras.py", head=""))
    assert error.message == "the file's name hides the module 'keras', which is already imported"
    assert error.help == "rename the file: mv keras.py my_keras.py"
    assert sys.modules["keras"] is keras


# --- refusals: running it --------------------------------------------------------------------------


def test_a_syntax_error_shows_the_line(write: Write):
    error = refused(write("x = 1\nmodel = net(\n    3 +* 4)\n"))
    assert error.where == f"user_net.py:{AFTER_HEAD + 2}"
    assert error.notes == ("3 +* 4)", "   ^")
    assert error.message.startswith("user_net.py is not valid Python: ")


def test_a_syntax_error_in_a_sibling_names_the_sibling(write: Write):
    write("def f(:\n", name="user_sibling.py", head="")
    assert refused(write("import user_sibling\n")).where == "user_sibling.py:1"


def test_an_exception_on_import_shows_the_users_own_deepest_line(write: Write):
    write("import json\n\ndef read(text):\n    return json.loads(text)\n", name="user_sibling.py", head="")
    error = refused(write("from user_sibling import read\nconfig = read('oops')\n"))
    assert str(error) == dedent(
        """\
        importing user_net.py raised JSONDecodeError
          --> user_sibling.py:4 (read)
           |  return json.loads(text)
           |  JSONDecodeError: Expecting value: line 1 column 1 (char 0)
           help: the whole traceback: python user_net.py"""
    )
    assert isinstance(error.__cause__, ValueError)
    assert "user_net" not in sys.modules, "a half-imported module is not left behind"


def test_a_missing_package_is_named(write: Write):
    error = refused(write("import surely_not_installed.layers\n"))
    assert error.where == f"user_net.py:{AFTER_HEAD} (<module>)"
    assert "surely_not_installed" in error.notes[1]
    assert (error.help or "").startswith("install it, e.g. pip install surely_not_installed")


def test_sys_exit_on_import(write: Write):
    error = refused(write("import sys\nmodel = net()\nsys.exit(2)\n"))
    assert error.message == "importing user_net.py ended in sys.exit(2)"
    assert error.where == f"user_net.py:{AFTER_HEAD + 2} (<module>)"
    assert '__name__ == "__main__"' in (error.help or "")


# --- refusals: choosing the model ------------------------------------------------------------------


def test_several_models_are_listed(write: Write):
    error = refused(write("encoder = net()\ndecoder = net()\n"))
    assert str(error) == dedent(
        """\
        user_net.py holds 2 models, expected a single model or a name
          --> user_net.py
           |  user_net.py:6 (encoder): a value of type keras.src.models.sequential.Sequential
           |  user_net.py:7 (decoder): a value of type keras.src.models.sequential.Sequential
           help: name the model: partition user_net.py:encoder"""
    )


def test_several_factories_are_listed(write: Write):
    error = refused(write("def build_model():\n    return net()\n\ndef get_model():\n    return net()\n"))
    assert error.message == "user_net.py holds 2 model factories, expected a single model or a name"
    assert error.notes == ("user_net.py:6 (build_model): a function", "user_net.py:9 (get_model): a function")


def test_a_file_without_a_model_lists_what_it_defines(write: Write):
    script = "if __name__ == '__main__':\n    model = net()\n"
    error = refused(write("RATE = 0.1\n\nclass Net(keras.Model):\n    pass\n\n" + script))
    assert "holds no model" in error.message
    assert error.notes == (
        "user_net.py:3 (net): a function",
        "user_net.py:6 (RATE): a value of type float",
        "user_net.py:8 (Net): the class user_net.Net",
        'what stands under `if __name__ == "__main__":` is not run',
    )
    assert error.help == "name what gives the model: partition user_net.py:Net"


def test_an_empty_file(write: Write):
    error = refused(write("", head=""))
    assert error.notes == ("it defines nothing",)
    assert "build_model()" in (error.help or "")


def test_a_missing_name_suggests_the_close_one(write: Write):
    error = refused(write("def build_resnet():\n    return net()\n") + ":build_resent")
    assert error.message == "user_net.py defines no 'build_resent'"
    assert error.help == "partition user_net.py:build_resnet"


def test_a_named_thing_that_is_no_model(write: Write):
    file = write("RATE = 0.1\nlayer = keras.layers.Dense(2)\nmodel = net()\n")
    error = refused(f"{file}:RATE")
    assert error.message == "'RATE' is a value of type float, expected a keras.Model or a function that returns a model"
    assert error.where == f"user_net.py:{AFTER_HEAD} (RATE)"
    assert refused(f"{file}:layer").help == "make a model of it: model = keras.Sequential([layer])"
    assert refused(f"{file}:model()").help == "leave out the parentheses: partition user_net.py:model"


def test_a_factory_that_needs_arguments_shows_its_signature(write: Write):
    error = refused(write("def build_model(depth: int, act: str, rate=0.1):\n    return net(depth)\n"))
    assert error.message == "'build_model' cannot be called without arguments: missing a required argument: 'depth'"
    assert error.notes == ("its signature: build_model(depth: int, act: str, rate=0.1)",)
    command = "partition \"user_net.py:build_model(depth=1, act='text')\""
    assert error.help == f"give the arguments as literals: {command}"
    assert load_model("user_net.py:build_model(depth=1, act='text')").model.output_shape == (None, 1)


def test_a_class_that_needs_arguments_shows_its_signature(write: Write):
    body = "class Net(keras.Model):\n    def __init__(self, units):\n        super().__init__()\n"
    error = refused(write(body) + ":Net")
    assert error.notes == ("its signature: Net(units)",)
    assert "got an unexpected keyword argument 'x'" in refused("user_net.py:Net(units=1, x=1)").message


@pytest.mark.parametrize(
    ("call", "help"),
    [
        ("build(x=foo)", "partition \"user_net.py:build(x='foo')\""),
        ("build([a, 1], x=b)", "partition \"user_net.py:build(['a', 1], x='b')\""),
        ("build(x=__import__('os').name)", 'partition "user_net.py:build(depth=2)"'),
        ("build(**{'x': 1})", 'partition "user_net.py:build(depth=2)"'),
    ],
)
def test_only_literals_are_taken(write: Write, call: str, help: str):
    error = refused(write("def build(*a, x=0):\n    return net()\n") + f":{call}")
    assert "must be literals" in error.message
    assert error.help == help


@pytest.mark.parametrize("name", ["", "a.b", "a.b()", "1 + 1", "build(", "build()()"])
def test_what_is_neither_a_name_nor_a_call(write: Write, name: str):
    assert "names no model" in refused(write("model = net()\n") + f":{name}").message


def test_a_factory_that_raises_shows_its_line(write: Write):
    error = refused(write("def build_model(units=0):\n    return net(units)\n") + ":build_model(units=-3)")
    assert error.message.startswith("build_model(units=-3) raised ")
    assert error.where == "user_net.py:4 (net)"
    script = "import importlib; importlib.import_module('user_net').build_model(units=-3)"
    assert (error.help or "").endswith(f' && python -c "{script}"')
    assert error.__cause__ is not None


def test_a_factory_that_exits(write: Write):
    error = refused(write("def build_model():\n    raise SystemExit('no data')\n"))
    assert error.message == "build_model() ended in sys.exit('no data')"
    assert error.where == f"user_net.py:{AFTER_HEAD + 1} (build_model)"


def test_an_interrupt_is_not_swallowed(write: Write):
    with pytest.raises(KeyboardInterrupt):
        load_model(write("raise KeyboardInterrupt\n"))
    assert "user_net" not in sys.modules


def test_a_factory_that_returns_no_model(write: Write):
    error = refused(write("def build_model():\n    model = net()\n"))
    assert error.message == "build_model() returned None, expected a keras.Model"
    assert error.where == f"user_net.py:{AFTER_HEAD} (build_model)"
    assert error.help == "did you forget `return model` at the end of build_model?"
    error = refused(write("def build_model():\n    return net(), 3\n"))
    assert error.message == "build_model() returned a value of type tuple, expected a keras.Model"


# --- refusals: .keras files ------------------------------------------------------------------------


def test_a_broken_keras_file(write: Write):
    error = refused(write("no zip", name="net.keras", head=""))
    assert error.message == "net.keras cannot be loaded by keras.models.load_model"
    assert error.__cause__ is not None


def test_a_keras_file_with_an_unknown_class(write: Write):
    body = "class Twice(keras.layers.Layer):\n    def call(self, x):\n        return 2 * x\n\n"
    body += "model = keras.Sequential([keras.Input((3,)), Twice()])\n"
    load_model(write(body)).model.save("net.keras")
    del sys.modules["user_net"]
    error = refused("net.keras")
    assert "Twice" in "\n".join(error.notes)
    assert "partition net.py" in (error.help or "")


def test_a_keras_file_takes_no_name(write: Write):
    load_model(write("model = net()\n")).model.save("net.keras")
    assert refused("net.keras:model").help == "partition net.keras"


# --- the examples -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("example", "input_shape", "num_parameters"),
    [
        ("mlp_784", (784,), 784 * 128 + 128 + 128 * 10 + 10),
        ("cnn_32x32", (32, 32, 3), 27 * 32 + 32 + 15 * 15 * 32 * 10 + 10),
        (
            "cnn_28x28",
            (28, 28, 1),
            (9 * 32 + 32) + (288 * 64 + 64) + (576 * 64 + 64) + (3 * 3 * 64 * 64 + 64) + (64 * 10 + 10),
        ),
        (
            "two_models",
            (28, 28, 1),
            (9 * 16 + 16) + (144 * 32 + 32) + (6 * 6 * 32 * 32 + 32) + (32 * 64 + 64) + (64 * 10 + 10),
        ),
    ],
)
def test_the_examples_hold_a_compiled_model(example: str, input_shape: tuple[int, ...], num_parameters: int):
    loaded = load_model(str(Path(__file__).parents[3] / "examples" / f"{example}.py"))
    assert loaded.where.endswith(" (build_model)")
    assert (loaded.model.name, loaded.model.input_shape) == (example, (None, *input_shape))
    assert loaded.model.count_params() == num_parameters
    assert loaded.model.compiled
