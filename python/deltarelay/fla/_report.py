"""The report of `enable()`."""

from __future__ import annotations

import dataclasses


class Drift(RuntimeError):
    """FLA differs from the version that this adapter was written for. The message says how."""


# What FLA computes without asking any backend.
UNREACHABLE = (
    "fused_recurrent_*: FLA's layers call it for prompts of at most 64 tokens and for decode when no gradient is "
    "wanted, and FLA asks no backend there",
    "torch.compile(fullgraph=True): FLA's functions break the graph; call deltarelay.chunk_kda or "
    "deltarelay.chunk_gated_delta_rule instead",
    "training: chunk_kda and chunk_gated_delta_rule with tensors that require grad are declined until there is a "
    "backward. FLA's own forward then runs, on our pieces; its backward stays FLA's",
)


@dataclasses.dataclass(frozen=True)
class Report:
    """State of the registration, and counts of calls since the first `enable()`."""

    enabled: bool
    fla_version: str = ""
    registry: str = ""  # the module of FLA's dispatch
    registered: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()  # why something was not registered or will not be asked
    unreachable: tuple[str, ...] = UNREACHABLE
    # Calls by function, and by "function: reason". Pieces of FLA's forward have their registry in front.
    taken: dict[str, int] = dataclasses.field(default_factory=dict)
    declined: dict[str, int] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        if not self.registry:
            return "\n".join(
                ["DeltaRelay is not registered with FLA.", *(f"  problem: {text}" for text in self.problems)]
            )
        state = "enabled" if self.enabled else "disabled"
        lines = [f"DeltaRelay in FLA {self.fla_version} ({self.registry}): {state}"]
        lines += [f"  registered: {text}" for text in self.registered]
        lines += [f"  problem: {text}" for text in self.problems]
        lines += [f"  cannot reach us: {text}" for text in self.unreachable]
        lines += [f"  taken: {name}, {count} calls" for name, count in self.taken.items()]
        lines += [f"  declined: {reason} ({count} calls)" for reason, count in self.declined.items()]
        return "\n".join(lines)
