"""For the tests of this folder: their own modules on the path, and life without the kernels."""

import sys
from pathlib import Path

import pytest

from learn2branch import kernels, native, nonzeros

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent.parent / "benchmarks")]


@pytest.fixture(params=["compiled", "plain torch"])
def kernels_or_not(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with the compiled kernels and without them."""
    if request.param == "compiled":
        if kernels.KERNELS is None:
            pytest.skip("the kernels were not compiled here")
    else:
        for module in (kernels, nonzeros, native):
            monkeypatch.setattr(module, "KERNELS", None)
    return request.param
