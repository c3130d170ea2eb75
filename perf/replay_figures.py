"""What a replay came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from kvcrucible.contract.operations import AdmissionMode, WaitingKind
from kvcrucible.engine.cache import ContextCache
from kvcrucible.perf.replay_watch import OperationFailed, WatchedEngine


@dataclass(slots=True)
class Counts:
    """What the replay itself counts as it goes; the engine's work counters have the rest."""

    refused: Counter[str] = field(default_factory=Counter)
    admitted: Counter[AdmissionMode] = field(default_factory=Counter)
    waits: Counter[WaitingKind] = field(default_factory=Counter)
    prompt_tokens: int = 0
    ideal_block_tokens: int = 0
    ideal_tokens: int = 0
    appended_tokens: int = 0
    finished: int = 0
    refused_tokens: list[int] = field(default_factory=list)
    last_tokens: int = 0
    findable_tokens: int = 0
    device_hits: int = 0
    host_hits: int = 0
    host_hit_tokens: int = 0
    peak_kept: int = 0
    peak_on_device: int = 0
    kept: int = 0
    kept_on_device: int = 0

    def see(self, cache: ContextCache) -> None:
        """Note how many continuations there are, and how many of them are wholly on Device."""
        self.kept, self.kept_on_device = len(cache.continuations), len(cache.continuations) - len(cache.away)
        self.peak_kept = max(self.peak_kept, self.kept)
        self.peak_on_device = max(self.peak_on_device, self.kept_on_device)

    @property
    def over(self) -> int:
        """Requests that are through, refused ones included."""
        return self.finished + self.refused.total()


@dataclass(frozen=True, slots=True)
class Figures:
    """All but ``cpu_seconds`` depends on trace and settings alone.

    ``requests``: submitted, refused ones included.  ``admitted`` by mode, ``refused`` by kind; ``waits``: rounds in
    which the head of the queue waited, by kind.  ``prompt_tokens``, ``hit_tokens`` and both ideals are over the
    admitted requests: ``ideal_hit_tokens`` by the engine's rule (token for token, at most all but the last),
    ``ideal_block_hit_tokens`` by whole blocks.  ``page_grants``: logical pages that units materialised; the tail copies
    of forks are ``page_copies``.  ``step_checks``: operations whose step was judged.  ``judged``: how often each
    invariant had something to judge.  ``smallest_refused_tokens``, ``largest_refused_tokens``: prompt and output of the
    requests that can never run, None where there are none.

    ``device_hits``, ``host_hits``: admissions that started from a hit, without and with a restore that it waited for;
    ``host_hit_tokens`` is what the latter hit.  ``findable_tokens``: what hits would have been if nothing had ever been
    released.  ``peak_continuations``: most retained at once, ``peak_continuations_on_device``: of those that are wholly
    on Device.  ``backfilled``: requests that passed a head of the queue that waited.  ``sunk``: demotions that were
    started under pressure; ``bytes_…`` were copied, and pages that had a copy already moved without.
    """

    requests: int
    finished: int
    admitted: dict[str, int]
    refused: dict[str, int]
    waits: dict[str, int]
    prompt_tokens: int
    hit_tokens: int
    ideal_hit_tokens: int
    ideal_block_hit_tokens: int
    appended_tokens: int
    page_grants: int
    peak_leased_pages: int
    evictions: int
    allocator_calls: int
    page_copies: int
    operations: int
    step_checks: int
    full_checks: int
    judged: dict[str, int]
    failure: OperationFailed | None
    cut_short: bool
    cpu_seconds: float
    smallest_refused_tokens: int | None = None
    largest_refused_tokens: int | None = None
    last_tokens: int = 0
    findable_tokens: int = 0
    device_hits: int = 0
    host_hits: int = 0
    host_hit_tokens: int = 0
    peak_continuations: int = 0
    peak_continuations_on_device: int = 0
    backfilled: int = 0
    sunk: int = 0
    transfers_abandoned: int = 0
    pages_sunk: int = 0
    pages_restored: int = 0
    bytes_sunk: int = 0
    bytes_restored: int = 0

    @property
    def gap(self) -> dict[str, int]:
        """Prompt tokens that did not hit, by reason; with the hits they are all prompt tokens.

        *never seen*: no earlier prompt has them; *last token*: the last one of a prompt is always computed; *not
        findable yet*: an earlier prompt has them and was not complete at the time; *lost*: they were findable once, and
        what held them was released, or could not be brought back.
        """
        return {
            "never seen": self.prompt_tokens - self.ideal_hit_tokens - self.last_tokens,
            "last token": self.last_tokens,
            "not findable yet": self.ideal_hit_tokens - self.findable_tokens,
            "lost": self.findable_tokens - self.hit_tokens,
        }

    @property
    def held(self) -> bool:
        """Whether something ran and no invariant was broken, as far as the replay came."""
        return self.failure is None and not self.inconclusive

    @property
    def inconclusive(self) -> bool:
        """Whether the replay went to its end and ran nothing: every request was refused."""
        return self.failure is None and not self.cut_short and not any(self.admitted.values())

    @property
    def hit_ratio(self) -> float:
        """Prompt tokens that did not have to be prefilled."""
        return self._of_prompt(self.hit_tokens)

    @property
    def ideal_hit_ratio(self) -> float:
        """The same with an infinite cache."""
        return self._of_prompt(self.ideal_hit_tokens)

    @property
    def ideal_block_hit_ratio(self) -> float:
        """The same with an infinite cache of whole blocks."""
        return self._of_prompt(self.ideal_block_hit_tokens)

    @property
    def operations_per_second(self) -> float:
        """Operations per second of processor time, the checks included."""
        return self.operations / self.cpu_seconds if self.cpu_seconds else 0.0

    def to_plain(self) -> dict[str, Any]:
        """Return JSON-ready data; what depends on the machine stands under ``timing``."""
        apart = ("failure", "cpu_seconds")
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        failure = self.failure
        return plain | {
            "held": self.held,
            "inconclusive": self.inconclusive,
            "gap": self.gap,
            "hit_ratio": self.hit_ratio,
            "ideal_hit_ratio": self.ideal_hit_ratio,
            "ideal_block_hit_ratio": self.ideal_block_hit_ratio,
            "violations": [] if failure is None else [asdict(violation) for violation in failure.violations],
            "failure": None if failure is None else _failure(failure),
            "timing": {"cpu_seconds": self.cpu_seconds, "operations_per_second": self.operations_per_second},
        }

    def _of_prompt(self, tokens: int) -> float:
        return tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def _failure(failure: OperationFailed) -> dict[str, Any]:
    return {
        "message": str(failure),
        "operation": failure.operation,
        "operation_number": failure.number,
        "requests": [subject.request for subject in failure.subjects],
    }


def figures_of(
    counts: Counts,
    watched: WatchedEngine,
    requests: int,
    failure: OperationFailed | None,
    cut_short: bool,
    cpu_seconds: float,
) -> Figures:
    """Return the figures of a replay that has ended after ``requests`` requests of its trace."""
    work = watched.engine.work
    return Figures(
        requests=requests,
        finished=counts.finished,
        admitted={mode.value: counts.admitted[mode] for mode in AdmissionMode},
        refused=dict(sorted(counts.refused.items())),
        waits={kind.value: times for kind, times in sorted(counts.waits.items())},
        prompt_tokens=counts.prompt_tokens,
        hit_tokens=work.tokens_hit,
        ideal_hit_tokens=counts.ideal_tokens,
        ideal_block_hit_tokens=counts.ideal_block_tokens,
        appended_tokens=counts.appended_tokens,
        page_grants=work.pages_granted,
        peak_leased_pages=watched.peak_leased,
        evictions=work.continuations_evicted,
        allocator_calls=work.allocator_calls,
        page_copies=work.page_copies,
        operations=watched.operations,
        step_checks=watched.step_checks,
        full_checks=watched.full_checks,
        judged={name: tally.premises for name, tally in watched.monitor.tallies.items()},
        failure=failure,
        cut_short=cut_short,
        cpu_seconds=cpu_seconds,
        smallest_refused_tokens=min(counts.refused_tokens, default=None),
        largest_refused_tokens=max(counts.refused_tokens, default=None),
        last_tokens=counts.last_tokens,
        findable_tokens=counts.findable_tokens,
        device_hits=counts.device_hits,
        host_hits=counts.host_hits,
        host_hit_tokens=counts.host_hit_tokens,
        peak_continuations=counts.peak_kept,
        peak_continuations_on_device=counts.peak_on_device,
        backfilled=work.backfilled,
        sunk=work.continuations_sunk,
        transfers_abandoned=work.transfers_abandoned,
        pages_sunk=work.pages_demoted,
        pages_restored=work.pages_restored,
        bytes_sunk=work.bytes_demoted,
        bytes_restored=work.bytes_restored,
    )
