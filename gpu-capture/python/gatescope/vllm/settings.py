"""What the environment says."""

from __future__ import annotations

import os
from dataclasses import dataclass

_ROLES = ("prefill", "decode", "colocated")


@dataclass(frozen=True)
class Settings:
    collector: str
    run: str
    role: str | None
    instance: str | None
    token: str | None
    spool: str | None

    @classmethod
    def from_environment(cls) -> Settings | None:
        """`None` where no collector is named. `ValueError` where a value cannot be."""
        collector = os.environ.get("GATESCOPE_COLLECTOR")
        if not collector:
            return None
        role = os.environ.get("GATESCOPE_ROLE") or None
        if role is not None and role not in _ROLES:
            raise ValueError(f"GATESCOPE_ROLE {role!r}: expected one of {', '.join(_ROLES)}")
        return cls(
            collector=collector,
            run=os.environ.get("GATESCOPE_RUN") or "default",
            role=role,
            instance=os.environ.get("GATESCOPE_INSTANCE") or None,
            token=os.environ.get("GATESCOPE_TOKEN") or None,
            spool=os.environ.get("GATESCOPE_SPOOL") or None,
        )
