"""What an adapter did in this process: places of the engine, calls taken and declined, lines in the engine's log."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any

from .. import _call
from ..errors import Invalid, Unsupported, WrongType

TAKEN_OVER = "taken over"
_MOST_REASONS = 256  # reasons hold shapes: a program may have many


@dataclasses.dataclass(frozen=True)
class Status:
    """What an adapter did since the engine started. Printed, it has a line for each fact."""

    engine: str
    # By place in the engine: "taken over", "not reached: why" or "declined: why".
    outcome: dict[str, str]
    taken: dict[str, int]  # calls by place
    declined: dict[str, int]  # calls by "place: reason"

    def __str__(self) -> str:
        if not self.outcome:
            return f"DeltaRelay in {self.engine}: nothing was taken over in this process"
        lines = [f"DeltaRelay in {self.engine}:"]
        lines += [f"  {place}: {words}" for place, words in self.outcome.items()]
        lines += [f"  taken: {place}, {count} calls" for place, count in self.taken.items()]
        lines += [f"  declined: {reason} ({count} calls)" for reason, count in self.declined.items()]
        return "\n".join(lines)


class _Thread(threading.local):
    inside = False  # the engine's own function, for a call that we declined


class Engine:
    """One engine in this process. `logger` is a name below the engine's own logger, whose handlers and level it has."""

    def __init__(self, name: str, logger: str) -> None:
        self.name, self.log = name, logging.getLogger(logger)
        self._lock, self._thread = threading.Lock(), _Thread()
        self.outcome: dict[str, str] = {}
        self.reset()

    def reset(self) -> None:
        """As in a process that has just started."""
        self.outcome.clear()
        self._said: set[str] = set()
        self._taken: collections.Counter[str] = collections.Counter()
        self._declined: collections.Counter[str] = collections.Counter()

    def say_once(self, message: str, level: int = logging.WARNING) -> None:
        """Logs a line once, however often a layer is called."""
        if message not in self._said and len(self._said) < _MOST_REASONS:
            self._said.add(message)
            self.log.log(level, "%s", message)

    def note(self, place: str, words: str) -> None:
        """What became of a place, in the outcome and in the log. Layers tell it one by one, the log once."""
        if self.outcome.get(place) == words:
            return
        self.outcome[place] = words
        level = logging.INFO if words == TAKEN_OVER else logging.WARNING
        self.log.log(level, "DeltaRelay in %s, %s: %s", self.name, place, words)

    def status(self) -> Status:
        with self._lock:
            return Status(self.name, dict(self.outcome), dict(self._taken), dict(self._declined))

    def run_or_leave(self, where: str, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
        """Our call. If it declines, before it has written anything, the engine's own call, with all that it calls
        itself."""
        if self._thread.inside:
            return theirs()
        try:
            result = ours()
        except (Invalid, Unsupported, WrongType) as error:
            self._count_declined(where, str(error))
            self._thread.inside = True
            try:
                return theirs()
            finally:
                self._thread.inside = False
        self._count_taken(where)
        return result

    def _count_taken(self, where: str) -> None:
        """Engines serve from processes of their own, where nobody can ask for the status: the 1st, 10th, 100th call
        and so on have a line."""
        _call.note_declined("")
        with self._lock:
            self._taken[where] += 1
            taken, declined = self._taken[where], sum(self._declined.values())
        if taken == 1 or str(taken).strip("0") == "1":
            self.log.info(
                "DeltaRelay in %s, %s: %d calls taken (all places: %d declined)", self.name, where, taken, declined
            )

    def _count_declined(self, where: str, reason: str) -> None:
        text = f"{where}: {reason}"
        _call.note_declined(text)
        with self._lock:
            self._declined[text if len(self._declined) < _MOST_REASONS else "(other reasons)"] += 1
        self.say_once(f"{where}: left to the engine: {reason}")
