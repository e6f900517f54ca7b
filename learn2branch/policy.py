"""The exported artefact: one TorchScript file with its metadata, and what runs it.

docs/policy-format.md describes the file. Reading one checks its structure, format and feature
schema before anything in it is used, and never unpickles Python objects.
"""

from __future__ import annotations

import copy
import io
import json
import platform
import warnings
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learn2branch.errors import InputError
from learn2branch.features import SCHEMAS
from learn2branch.models import GraphModel, build_model
from learn2branch.native import native
from learn2branch.runs import replace_file
from learn2branch.scripted import script

FORMAT = 1  # of the file; raised whenever an older version could not read it
METADATA, WEIGHTS = "metadata.json", "weights.npz"

# torch says so once a process; users of a policy can do nothing about it.
warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")


class Policy:
    """A scorer of one graph, loaded from a file: `policy(*graph.tensors()) -> scores`."""

    def __init__(self, module: torch.jit.ScriptModule, metadata: dict[str, Any]) -> None:
        self.metadata = metadata
        self._module = module
        self._native = native(module, metadata["config"])

    @torch.inference_mode()
    def __call__(
        self,
        constraint_features: Tensor,  # (m, c)
        edge_index: Tensor,  # (2, e), row 0 the constraint, row 1 the variable
        edge_values: Tensor,  # (e,)
        variable_features: Tensor,  # (n, v)
        candidates: Tensor | None = None,  # (k,), variables
    ) -> Tensor:
        """Score all variables, (n,), or the candidates, (k,); an instance policy gives (1,)."""
        if candidates is not None and self.metadata["config"]["task"] == "instance":
            # Here, as scripts of older files do not: they would average the candidates alone.
            raise ValueError("a policy for instances takes no candidates")
        run = self._native or self._module
        return run(constraint_features, edge_index, edge_values, variable_features, candidates)

    def to(self, device: torch.device | str) -> Policy:
        """Run on another device from now on; inputs must be there too."""
        self._module.to(device)
        if torch.device(device).type != "cpu":
            self._native = None
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Policy:
        """Copy the module; what the kernels use points into its own tensors and is made anew."""
        copied = Policy(copy.deepcopy(self._module, memo), copy.deepcopy(self.metadata, memo))
        copied._native = copied._native if self._native else None
        return copied

    def __repr__(self) -> str:
        config = self.metadata["config"]
        return f"Policy({config['backbone']}, task={config['task']!r})"


def export_policy(
    model: GraphModel, path: str | Path, provenance: Mapping[str, Any] | None = None
) -> Path:
    """Write a trained model as a policy file; `provenance` says how it was trained (JSON)."""
    path = Path(path)
    norms = {"variable": model.backbone.variable_norm, "constraint": model.backbone.constraint_norm}
    norms["edge"] = model.backbone.edge_norm
    module, state = script(model), model.state_dict()
    shared = _held_by(module, state)
    metadata = {
        "format": FORMAT,
        "task": model.task,
        "config": model.config,
        "schema": {
            "name": model.schema.name,
            "hash": model.schema.hash,
            "variable": model.schema.variable,
            "constraint": model.schema.constraint,
        },
        "normaliser": {
            name: {"shift": norm.shift.tolist(), "scale": norm.scale.tolist()}
            for name, norm in norms.items()
        },
        "versions": {
            "learn2branch": version("learn2branch"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "provenance": dict(provenance or {}),
        "shared_weights": shared,
    }
    weights = io.BytesIO()
    np.savez(weights, **{k: v.cpu().numpy() for k, v in state.items() if k not in shared})
    extra = {METADATA: json.dumps(metadata, indent=1).encode(), WEIGHTS: weights.getvalue()}
    # Not to the file at once: on a full disk torch's writer ends the whole process.
    content = io.BytesIO()
    torch.jit.save(module, content, _extra_files=extra)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content.getvalue())
    return path


def load_policy(policy: str | Path) -> Policy:
    """Load a policy file, or a shipped policy by name: "setcover", "setcover-bgnn"."""
    path = find_policy(policy)
    metadata = json.loads(_read(path)[METADATA])
    module = _load_script(path).eval()
    try:
        return Policy(module, metadata)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}; copy or export it again") from None


def load_model(policy: str | Path) -> GraphModel:
    """Give back the trainable model that a policy was exported from."""
    path = find_policy(policy)
    content = _read(path)
    metadata = json.loads(content[METADATA])
    try:
        model = build_model(**metadata["config"])
    except (InputError, TypeError) as error:
        raise InputError(f"{path} is damaged: {error}; copy or export it again") from None
    try:
        buffers = dict(_load_script(path).named_buffers())
        with np.load(io.BytesIO(content[WEIGHTS]), allow_pickle=False) as arrays:
            state = {name: torch.from_numpy(arrays[name]) for name in arrays}
        for name, held in metadata["shared_weights"].items():
            buffer = buffers[held.removesuffix(".T")]
            state[name] = buffer.T if held.endswith(".T") else buffer
        model.load_state_dict(state)
    except (KeyError, ValueError, RuntimeError, zipfile.BadZipFile):
        raise InputError(f"{path} holds weights of another model: export it again") from None
    return model


def shipped_policies() -> dict[str, Path]:
    """Return the policies that come with this package: name -> file."""
    folder = Path(str(files("learn2branch"))) / "shipped"
    return {path.stem: path for path in sorted(folder.glob("*.pt"))}


def find_policy(policy: str | Path) -> Path:
    """Return the file of a policy given by its path, the folder of its run or a shipped name."""
    path, shipped = Path(policy), shipped_policies()
    for file in (path, path / "policy.pt"):
        if file.is_file():
            return file
    for name in (str(policy), f"{policy}-dualattn"):
        if name in shipped:
            return shipped[name]
    known = f"a shipped policy ({', '.join(shipped)})" if shipped else "a policy that l2b trained"
    raise InputError(f"there is no policy {policy}: give a policy.pt file or {known}")


def _held_by(module: torch.jit.ScriptModule, state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return which weights the script holds anyway: name -> its buffer, with ".T" if transposed."""

    def content(tensor: Tensor) -> tuple[torch.Size, torch.dtype, bytes]:
        return tensor.shape, tensor.dtype, tensor.detach().cpu().numpy().tobytes()

    places = {}
    for name, buffer in module.named_buffers():
        if buffer.dim() == 2:
            places[content(buffer)] = name
            places[content(buffer.T)] = f"{name}.T"
    found = {name: places.get(content(weight)) for name, weight in state.items()}
    return {name: place for name, place in found.items() if place is not None}


def _load_script(path: Path) -> torch.jit.ScriptModule:
    try:
        return torch.jit.load(str(path), map_location="cpu")
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{path} cannot be read as TorchScript: {reason}") from None


def _read(path: Path) -> dict[str, bytes]:
    """Check a policy file, from its structure up to its schema, and return its extra files."""
    remedy = "give a policy.pt that l2b train or export_policy wrote"
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            damaged = archive.testzip()
            content = {
                name: archive.read(member)
                for member in members
                for name in (METADATA, WEIGHTS)
                if member.count("/") == 2 and member.endswith(f"/extra/{name}")
            }
            is_script = any("/code/" in member for member in members)
        if len(set(members)) < len(members):
            raise ValueError("a member twice")  # torch crashes where one was meant to be another
    except Exception as error:  # what a damaged directory leads to has many names
        raise InputError(
            f"{path} is not a policy file, or is cut short ({error}): {remedy}"
        ) from None
    if damaged is not None:
        raise InputError(f"{path} is damaged at {damaged}: copy or export it again")
    if len(content) != 2 or not is_script:
        # Half a file may still open as an archive: that of the weights inside it.
        raise InputError(f"{path} is not a policy file, or is cut short: {remedy}")
    try:
        metadata = json.loads(content[METADATA])
        found, schema, config = metadata["format"], metadata["schema"], metadata["config"]
        name, hash_ = schema["name"], schema["hash"]
        if not all(isinstance(word, str) for word in (name, config["backbone"], config["task"])):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} has no metadata of a policy: {remedy}") from None
    if found != FORMAT:
        raise InputError(
            f"{path} has policy format {found}, this version reads {FORMAT}: "
            f"export it again, or install the learn2branch that wrote it"
        )
    if name not in SCHEMAS or SCHEMAS[name].hash != hash_:
        raise InputError(
            f"{path} was trained on other {name!r} features than this version computes: "
            f"train it again, or install the learn2branch that wrote it"
        )
    return content
