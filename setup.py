"""The C sources: compiled where a compiler exists, left out (with a plain fallback) where not."""

from pathlib import Path

from setuptools import Extension, setup

# -ffast-math is not used: the fast paths must agree with the plain ones on infinities and NaN.
FLAGS = ["-O3", "-std=c11", "-fvisibility=hidden"]

setup(
    ext_modules=[
        Extension(
            name,
            [source],
            depends=[str(path) for path in Path(source).parent.glob("*.c")],
            extra_compile_args=FLAGS,
            optional=True,
        )
        for name, source in {
            "learn2branch._kernels": "learn2branch/_kernels.c",
            "learn2branch._decoding": "learn2branch/_decoding.c",
            "solver_plugins._scip": "solver_plugins/_scip.c",
        }.items()
        if Path(source).exists()
    ]
)
