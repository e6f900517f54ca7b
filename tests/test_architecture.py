"""Imports point one way: pipelines -> {learn2branch, solver_plugins, instances}, and so on down."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("learn2branch", "solver_plugins", "instances", "pipelines")
MAY_IMPORT = {
    "learn2branch": {"learn2branch"},
    "instances": {"instances"},
    "solver_plugins": {"solver_plugins", "learn2branch"},
    "pipelines": set(ROOMS),
}
ONLY_IN = {
    "pyscipopt": {"solver_plugins", "instances"},
    "click": {"pipelines"},
    "joblib": {"pipelines"},
}


def imported_packages(source: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    sources = list((ROOT / room).rglob("*.py"))
    assert sources
    for source in sources:
        imports = imported_packages(source)
        assert imports & set(ROOMS) <= MAY_IMPORT[room], source
        for package, rooms in ONLY_IN.items():
            assert package not in imports or room in rooms, f"{source} imports {package}"


def test_joblib_is_known_in_one_place_only() -> None:
    users = [p for p in (ROOT / "pipelines").rglob("*.py") if "joblib" in imported_packages(p)]
    assert [p.name for p in users] == ["parallel.py"]
