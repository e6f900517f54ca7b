"""What `--policy` names: a policy file, a run, a shipped policy, or one of SCIP's own rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from learn2branch.errors import InputError
from pipelines.inputs import content_hash

# What a family's policies are called after: the backbone, and its size if that is not the full one.
KINDS = ("dualattn", "dualattn-small", "bgnn", "bgnn-small")
SCIP_DEFAULT = "relpscost"


@dataclass(frozen=True)
class Choice:
    """Who branches: one of SCIP's rules by name, or a policy file."""

    label: str  # in tables, unique within an evaluation
    rule: str | None = None
    file: Path | None = None
    fingerprint: str = ""  # of the file's content; empty for a rule

    @property
    def origin(self) -> str:
        """Where the decisions come from, for the report."""
        if self.file is None:
            return f"SCIP's rule {self.rule}"
        shipped = self.file.parent.name == "shipped"
        name = f"shipped {self.file.stem}" if shipped else self.file
        return f"{name} ({self.fingerprint})"


def find_choice(name: str, family: str | None = None, runs: Path | str = "runs") -> Choice:
    """Find what a name given by a user means; InputError names what could have been meant.

    A kind (`dualattn`, `bgnn-small`, …) is the newest local run of the family
    (`runs/<family>-<kind>*`), else the shipped policy; other names are a policy file or the folder
    of a run, one of SCIP's rules, or a shipped policy.
    """
    from learn2branch.policy import find_policy, shipped_policies

    path = Path(name)
    if name in KINDS:
        found = _of_family(name, family, Path(runs))
        if found is None:
            raise InputError(_missing(name, family))
        return _policy(name, found)
    if path.is_file():
        return _policy(path.parent.name if path.name == "policy.pt" else path.stem, path)
    if (path / "policy.pt").is_file():
        return _policy(path.name, path / "policy.pt")
    if path.suffix == ".pt" or len(path.parts) > 1:
        raise InputError(f"there is no policy file {name}")
    from solver_plugins.solve import scip_rules

    if name in scip_rules():
        return Choice(name, rule=name)
    if name in shipped_policies() or f"{name}-dualattn" in shipped_policies():
        return _policy(name, find_policy(name))
    shipped = f", a shipped policy ({', '.join(shipped_policies())})" if shipped_policies() else ""
    raise InputError(
        f"there is no policy {name!r}: give a policy.pt, {', '.join(KINDS)}{shipped}, or one "
        f"of SCIP's rules ({', '.join(scip_rules())})"
    )


def find_choices(
    names: Iterable[str], family: str | None = None, runs: Path | str = "runs"
) -> list[Choice]:
    """Find several; no names mean dualattn, the other kinds that there are, and SCIP's default."""
    names = list(names)
    if not names and family is None:
        raise InputError(
            "your own instances need --policy, and more than one to compare: "
            "for example --policy runs/mine-dualattn --policy relpscost --policy pscost"
        )
    if not names:
        others = [kind for kind in KINDS[1:] if _of_family(kind, family, Path(runs)) is not None]
        names = [KINDS[0], *others, SCIP_DEFAULT]
    choices = [find_choice(name, family, runs) for name in dict.fromkeys(names)]
    labels = [choice.label for choice in choices]
    return [
        choice
        if choice.file is None or labels.count(choice.label) == 1
        else _policy(str(choice.file), choice.file)
        for choice in choices
    ]


def trained_on(file: Path) -> set[Path]:
    """Return a user's own instances that a policy was trained and chosen on, by its provenance."""
    from learn2branch.policy import load_policy

    provenance, found = load_policy(file).metadata.get("provenance", {}), set()
    while provenance:
        for collection in provenance.get("collection", {}).values():
            for split in ("train", "valid"):
                found |= set(collection.get(split, {}).get("instances", ()))
        provenance = provenance.get("start", {}).get("provenance")
    return {Path(name).resolve() for name in found}


def newest_family(runs: Path | str = "runs") -> tuple[str, Path] | None:
    """Return the family of the newest branching run, and that run; None where there is none."""
    from instances import FAMILIES

    found = [
        (family, run)
        for family in FAMILIES
        for kind in KINDS
        for run in _local(family, kind, Path(runs))
    ]
    return max(found, key=lambda pair: pair[1].stat().st_mtime, default=None)


def _local(family: str, kind: str, runs: Path) -> list[Path]:
    """Return the policies of the runs of a kind: those whose names begin with no longer one."""
    longer = tuple(f"{family}-{other}" for other in KINDS if other.startswith(f"{kind}-"))
    folders = (run for run in runs.glob(f"{family}-{kind}*") if not run.name.startswith(longer))
    return [run / "policy.pt" for run in folders if (run / "policy.pt").is_file()]


def _of_family(kind: str, family: str | None, runs: Path) -> Path | None:
    from learn2branch.policy import shipped_policies

    if family is None:
        return None
    if local := _local(family, kind, runs):
        return max(local, key=lambda path: path.stat().st_mtime)
    return shipped_policies().get(f"{family}-{kind}")


def _missing(kind: str, family: str | None) -> str:
    if family is None:
        return (
            f"{kind} needs a family: give a name such as setcover-{kind} (l2b models lists them), "
            "a run or a policy.pt"
        )
    return (
        f"there is no {kind} policy for {family}, neither in runs/ nor shipped: train one "
        f"(l2b train --problem {family}), or give a policy.pt"
    )


def _policy(label: str, file: Path) -> Choice:
    """Check a policy file before hours are spent on it."""
    from learn2branch.policy import load_policy

    task = load_policy(file).metadata["task"]
    if task != "state":
        raise InputError(f"{file} predicts for the {task} task: give one trained for branching")
    return Choice(label, file=file, fingerprint=content_hash(file))
