"""Every selector and enumerator of the Metal driver exists, with those types.

What the driver calls is read from its `_native.py`, the only file with foreign calls. What exists is PyObjC's metadata,
of which the project carries the part it needs, and a list by hand for plain classes, each entry with Apple's page.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.testing.metal_simulated import native, plain
from tidegate.testing.metal_simulated.objects import encodings_of, metadata, selector_of

ROOT = Path(__file__).parents[3]
DRIVER = ROOT / "src" / "tidegate" / "drivers" / "metal"
NATIVE = DRIVER / "_native.py"
SIMULATED = ROOT / "src" / "tidegate" / "testing" / "metal_simulated"
TREE = ast.parse(NATIVE.read_text(encoding="utf-8"))

#: What is reached by a dot in `_native.py` and is no selector: Python's, NumPy's and PyObjC's own, with the reason.
NOT_OBJECTIVE_C = {
    "as_buffer": "objc.varlist.as_buffer, PyObjC's pointer without a length",
    "pythonapi": "ctypes",
    "Py_IncRef": "ctypes",
    "py_object": "ctypes",
    "extend": "list.extend",
    "append": "list.append",
    "CDLL": "ctypes",
    "objc_autoreleasePoolPush": "the Objective-C runtime (Clang — Automatic Reference Counting)",
    "objc_autoreleasePoolPop": "the same",
    "restype": "ctypes",
    "argtypes": "ctypes",
    "_push": "a field",
    "_pop": "a field",
    "_token": "a field",
    "__metadata__": "objc.selector.__metadata__",
    "get": "dict.get",
}
NAMESPACES = {"native", "Metal", "objc", "libdispatch", "ctypes", "Foundation"}

#: By annotation of the driver's function: the encodings that it fits.
FITS = {
    "int": "QqIizC",
    "bool": "Z",
    "float": "fd",
    "str": "@",
    "bytes": "^",
    "Object": "@",
    "Object | None": "@",
    "Any": "^@",
    "Size": "{",
    "dict[str, str]": "@",
}


def functions() -> Iterator[ast.FunctionDef]:
    for node in TREE.body:
        if isinstance(node, ast.FunctionDef):
            yield node


Call = tuple[ast.FunctionDef, str, list[ast.expr]]


def calls() -> list[Call]:
    """Every call of a selector: the function it stands in, the name, and the arguments."""
    found = []
    for function in functions():
        called = {id(target): arguments for target, arguments in called_in(function)}
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and is_foreign(node):
                assert id(node) in called, f"{function.name}: {node.attr} is reached, but how it is called is not clear"
                found.append((function, node.attr, called[id(node)]))
    return found


def is_foreign(node: ast.Attribute) -> bool:
    return node.attr not in NOT_OBJECTIVE_C and not (isinstance(node.value, ast.Name) and node.value.id in NAMESPACES)


def called_in(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    """What is called with which arguments: directly, through `_own`, or once through map and starmap."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        assert not node.keywords or not isinstance(node.func, ast.Attribute) or not is_foreign(node.func)
        yield node.func, node.args
        if isinstance(node.func, ast.Name) and node.func.id in ("map", "starmap"):
            (once,) = [each for row in node.args[1:] for each in row.elts]  # type: ignore[attr-defined]
            yield node.args[0], list(once.elts) if node.func.id == "starmap" else [once]
        if isinstance(node.func, ast.Name) and node.func.id == "_own":
            yield node.args[0], node.args[1:]


CALLS = calls()


def known(name: str) -> list[Any] | None:
    """What is known of a selector, in the metadata or, on any class, by hand."""
    selector = selector_of(name)
    for owner in ["", *plain.SELECTORS]:
        found = encodings_of(owner, selector)
        if found is not None:
            return found
    return None


def annotation(function: ast.FunctionDef, name: str) -> str | None:
    for argument in function.args.args:
        if argument.arg == name and argument.annotation is not None:
            return ast.unparse(argument.annotation)
    return None


def fits(function: ast.FunctionDef, value: ast.expr, encoding: str) -> bool:
    """Whether an argument, as far as it can be told from the text, converts to an encoding."""
    if isinstance(value, ast.Name):
        if re.fullmatch(r"MTL\w+", value.id):
            return encoding in "Qq"
        kind = annotation(function, value.id)
        if kind is None:
            return encoding[0] == "@"  # a local variable: an object made before
        if kind.startswith("Callable"):
            return encoding == "@?"
        return encoding[0] in FITS[kind] and encoding != "@?"
    if isinstance(value, ast.Constant):
        return fits_constant(value.value, encoding)
    if isinstance(value, ast.Tuple):
        return encoding[0] == "{" and len(value.elts) == encoding.count("Q")
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("len", "ctypes.addressof"):
        return encoding in ("Qq" if ast.unparse(value.func) == "len" else "P")
    if isinstance(value, (ast.BinOp, ast.IfExp)):
        return encoding in FITS["int"]
    return encoding[0] == "@"


def fits_constant(value: object, encoding: str) -> bool:
    if value is None:
        return encoding[0] in "@^"
    if isinstance(value, bool):
        return encoding == "Z"
    return isinstance(value, int) and encoding in FITS["int"]


@pytest.mark.parametrize(
    ("text", "encoding", "answer"),
    [
        ("offset", "Q", True),
        ("offset", "@", False),
        ("buffer", "@", True),
        ("buffer", "Q", False),
        ("buffer", "@?", False),
        ("data", "^v", True),
        ("data", "@", False),
        ("block", "@?", True),
        ("groups", "{MTLSize=QQQ}", True),
        ("groups", "Q", False),
        ("(offset, 1)", "{_NSRange=QQ}", True),
        ("(offset, 1)", "{MTLSize=QQQ}", False),
        ("None", "^@", True),
        ("None", "Q", False),
        ("len(data)", "Q", True),
        ("True", "Z", True),
        ("1", "Z", False),
        ("MTLBarrierScopeBuffers", "Q", True),
        ("MTLBarrierScopeBuffers", "@", False),
    ],
)
def test_the_check_of_an_argument_tells_right_from_wrong(text: str, encoding: str, answer: bool) -> None:
    head = "def f(offset: int, buffer: Object, data: bytes, block: Callable[[], None], groups: Size): pass"
    (function,) = ast.parse(head).body
    assert isinstance(function, ast.FunctionDef)
    assert fits(function, ast.parse(text, mode="eval").body, encoding) is answer


def test_a_selector_that_does_not_exist_is_not_known() -> None:
    assert known("setBuffer_offset_atIndex_") is not None
    assert known("setBuffer_offset_atindex_") is None
    assert known("setBuffer_offset") is None


def test_the_driver_calls_selectors() -> None:
    assert len({name for _, name, _ in CALLS}) > 40


@pytest.mark.parametrize(("function", "name", "given"), CALLS, ids=[f"{each[0].name}-{each[1]}" for each in CALLS])
def test_a_selector_exists_and_takes_these_arguments(
    function: ast.FunctionDef, name: str, given: list[ast.expr]
) -> None:
    arguments = known(name)
    assert arguments is not None, f"{selector_of(name)} is in no list"
    assert len(given) == len(arguments)
    for value, wanted in zip(given, arguments, strict=True):
        assert fits(function, value, wanted["type"]), f"{ast.unparse(value)} for {wanted}"


def test_what_a_new_selector_makes_is_owned() -> None:
    """PyObjC does not always know that it belongs to the caller: see `_native._own`."""
    owned = {
        node.args[0].attr
        for node in ast.walk(TREE)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_own"
        if isinstance(node.args[0], ast.Attribute)
    }
    assert owned == {name for _, name, _ in CALLS if name.startswith("new")}
    direct = {
        node.func.attr for node in ast.walk(TREE) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert not owned & direct


RESULTS = {"int": "QqIiz", "bool": "Z", "str": "@", "float": "fd"}


def result_of(name: str) -> str | None:
    selector = selector_of(name)
    for listed in plain.SELECTORS.values():
        if selector in listed:
            return listed[selector][0][0]
    found = metadata()["selectors"].get(selector, {}).get("retval", {}).get("type")
    return None if found is None else str(found)[0]


CONVERSIONS = [
    (node.func.id, node.args[0].func.attr)
    for node in ast.walk(TREE)
    if isinstance(node, ast.Call)
    and isinstance(node.func, ast.Name)
    and node.func.id in RESULTS
    and len(node.args) == 1
    and isinstance(node.args[0], ast.Call)
    and isinstance(node.args[0].func, ast.Attribute)
]


@pytest.mark.parametrize(("kind", "name"), CONVERSIONS)
def test_a_result_is_what_the_driver_takes_it_for(kind: str, name: str) -> None:
    assert result_of(name) in RESULTS[kind]


def test_results_are_converted() -> None:
    assert len(CONVERSIONS) > 10


ENUMERATORS = {
    target.id: ast.literal_eval(node.value)
    for node in TREE.body
    if isinstance(node, ast.Assign)
    for target in node.targets
    if isinstance(target, ast.Name) and target.id.startswith(("MTL", "NS"))
}


@pytest.mark.parametrize("name", ENUMERATORS)
def test_an_enumerator_has_the_value_that_apple_gives_it(name: str) -> None:
    by_hand = {known_name: value for known_name, (value, _) in plain.CONSTANTS.items()}
    assert ENUMERATORS[name] == {**by_hand, **metadata()["enums"]}[name]


def test_every_enumerator_that_the_driver_names_has_a_value() -> None:
    """Names like MTLThing in any file of the driver: a class or function of the framework, or an enumerator."""
    used: set[str] = set()
    for path in DRIVER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name | ast.Attribute):
                used |= set(re.findall(r"^MTL\w+", node.id if isinstance(node, ast.Name) else node.attr))
    assert not {name for name in used - set(ENUMERATORS) if name not in plain.SELECTORS and name not in plain.FUNCTIONS}


def test_the_numbers_of_data_types_are_apples() -> None:
    from tidegate.drivers.metal import executable

    values = {value for name, (value, _) in plain.CONSTANTS.items() if name.startswith("MTLDataType")}
    assert set(executable._DATA_TYPES) <= values


@pytest.mark.parametrize("path", sorted(DRIVER.glob("*.py")), ids=lambda path: path.name)
def test_only_one_file_calls_metal(path: Path) -> None:
    if path == NATIVE:
        return
    reached = {
        node.attr for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Attribute)
    }
    foreign = {name for name in reached if re.search(r"[a-z][A-Z]", name) and not name.startswith("MTL")}
    assert not {name for name in foreign if known(name) is not None or name.endswith("_")}


def test_the_simulation_has_everything_that_the_driver_loads() -> None:
    (loading,) = (node for node in TREE.body if isinstance(node, ast.ClassDef) and node.name == "Native")
    wanted = {node.target.id for node in loading.body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]
    assert wanted
    assert not {name for name in wanted if not hasattr(native(), name)}


def test_functions_of_the_frameworks_are_listed() -> None:
    taken = {
        node.attr
        for node in ast.walk(TREE)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in NAMESPACES - {"ctypes"}
    }
    assert taken
    assert not {name for name in taken if name not in plain.FUNCTIONS and name not in plain.SELECTORS}


# The lists themselves


@pytest.mark.parametrize("owner", plain.SELECTORS)
def test_a_selector_by_hand_has_its_page_and_as_many_encodings_as_colons(owner: str) -> None:
    for selector, (encoding, page) in plain.SELECTORS[owner].items():
        assert len(encoding) == 1 + selector.count(":"), selector
        assert page.startswith(("MTL", "NS"))


def test_a_constant_and_a_function_by_hand_has_its_page() -> None:
    assert all(page.startswith("MTL") for _, page in plain.CONSTANTS.values())
    assert all(plain.FUNCTIONS.values())


def test_what_is_by_hand_is_not_in_the_metadata() -> None:
    registered = {
        (entry["registered_on"], selector)
        for selector, entry in metadata()["selectors"].items()
        if entry["registered_on"] != "NSObject"
    }
    assert not registered & {(owner, selector) for owner, listed in plain.SELECTORS.items() for selector in listed}
    assert not set(plain.CONSTANTS) & set(metadata()["enums"])


@pytest.mark.slow
def test_nothing_is_carried_that_nobody_needs(tmp_path: Path) -> None:
    """The tool that cuts the metadata down keeps everything of what it has cut down."""
    whole = tmp_path / "metadata.json"
    whole.write_text(json.dumps(metadata()), encoding="utf-8")
    tool = [sys.executable, str(ROOT / "tools" / "metal_selectors.py"), str(whole), "--check"]
    assert subprocess.run(tool, timeout=60, check=False).returncode == 0


def test_everything_by_hand_is_used() -> None:
    texts = [path.read_text(encoding="utf-8") for path in [*SIMULATED.glob("*.py"), NATIVE] if path.name != "plain.py"]
    names = set(re.findall(r"\w+", "\n".join(texts)))
    unused = {
        (owner, selector)
        for owner, listed in plain.SELECTORS.items()
        for selector in listed
        if selector.replace(":", "_") not in names
    }
    assert not unused
