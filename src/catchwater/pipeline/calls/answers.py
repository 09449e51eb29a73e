"""A function's questions and the answers to them, typed and as bytes.

A call `score` of a class is two methods: `ask_score(event)` returns the question, or None, and
depends on the event only; `call_score(question)` asks the endpoint and returns the answer, whose
type is in its annotation. It runs in several threads at a time. Questions and answers are records,
or anything else that msgspec encodes; equal questions of one shard's epoch are asked once. With
`Call(batch=…)` it takes a list of questions and returns the list of their answers.

Sends no request; `ask` does.
"""

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import msgspec

from catchwater.config import CatchwaterError
from catchwater.pipeline.calls.policy import Call, Policy, check
from catchwater.state.keys import EventRefused
from catchwater.state.records import from_plain, to_plain

Key = tuple[str, bytes]
"""The call's name and the encoded question."""


class CallFailed(CatchwaterError):
    """An endpoint did not answer a question that the epoch needs."""


class AnswerMissing(EventRefused):
    """An endpoint did not answer this event's question: the event becomes a dead letter."""


class Outcome(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The outcome of a question, as it is stored."""

    answer: bytes | None = None
    """Encoded; None: it failed for good."""
    why: str = ""


Outcomes = Mapping[Key, Outcome]


class BoundCall:
    """One declared call of one function, with its methods."""

    def __init__(self, name: str, policy: Policy, instance: Any) -> None:
        self.name = name
        self.policy = policy
        self.ask: Callable[[Any], Any] = getattr(instance, f"ask_{name}")
        self._declared: Callable[[Any], Any] = getattr(instance, f"call_{name}")
        self.call = self._declared
        """The method that asks; a test may replace it."""

    def encode_question(self, question: Any) -> bytes:
        """The question as bytes; equal ones give equal bytes."""
        return self._encoder.encode(question)

    def answer(self, question: Any) -> Outcome:
        """Ask the endpoint once, in this thread; a failure is an outcome too."""
        return self._outcomes(lambda: [self.call(question)], 1)[0]

    def answers(self, questions: Sequence[Any]) -> list[Outcome]:
        """Ask the endpoint once for all of them; what fails, fails for all."""
        if self.policy.batch is None:
            return [self.answer(question) for question in questions]
        return self._outcomes(lambda: [*self.call([*questions])], len(questions))

    def _outcomes(self, ask: Callable[[], list[Any]], count: int) -> list[Outcome]:
        try:
            answers = ask()
            if len(answers) != count:
                raise ValueError(f"it gave {len(answers)} answers to {count} questions")
            encoded = [self._encoder.encode(answer) for answer in answers]
            for each in encoded:
                self.decode_answer(each)
        except Exception as error:  # noqa: BLE001  (the user's code and the world: all is a failure)
            return [Outcome(None, f"{type(error).__name__}: {error}")] * count
        return [Outcome(each) for each in encoded]

    @cached_property
    def decode_answer(self) -> Callable[[bytes], Any]:
        """Bytes to an answer of the annotated type; raises msgspec.DecodeError."""
        return answer_decoder(self._declared, together=self.policy.batch is not None)

    @cached_property
    def _encoder(self) -> msgspec.msgpack.Encoder:
        return msgspec.msgpack.Encoder(enc_hook=to_plain, order="deterministic")


def bind(target: Any, calls: Mapping[str, Call]) -> dict[str, BoundCall]:
    """The calls of a checked function, on an instance of their own."""
    if not calls:
        return {}
    instance = target()
    return {name: BoundCall(name, check(call), instance) for name, call in calls.items()}


def questions(calls: Mapping[str, BoundCall], events: Iterable[Any]) -> dict[Key, Any]:
    """The distinct questions of these events, in order.

    An event whose question cannot be made is left out: the handler meets the same error when it
    asks for the answer, and there it is a poison record like any other.
    """
    found: dict[Key, Any] = {}
    for event in events:
        for name, call in calls.items():
            with suppress(Exception):  # the user's code: see above
                question = call.ask(event)
                if question is not None:
                    found.setdefault((name, call.encode_question(question)), question)
    return found


class Answers:
    """What `ctx.answer` looks into."""

    def __init__(self, calls: Mapping[str, BoundCall], outcomes: Outcomes) -> None:
        self._calls = calls
        self._outcomes = outcomes

    def of(self, name: str, event: Any) -> Any:
        """The answer to this event's question, a fresh object; None if it asked none.

        A failed call gives None, or raises `AnswerMissing`, as its `on_failure` says. LookupError
        if there is no such call, or the question is another one than before.
        """
        call = self._calls.get(name)
        if call is None:
            raise LookupError(f"there is no call {name!r}; declared: {', '.join(self._calls)}")
        question = call.ask(event)
        if question is None:
            return None
        outcome = self._outcomes.get((name, call.encode_question(question)))
        if outcome is None:
            raise LookupError(
                f"ask_{name} gave {question!r}, which it had not given before: it must depend on "
                "nothing but the event"
            )
        if outcome.answer is not None:
            return call.decode_answer(outcome.answer)
        if call.policy.on_failure == "none":
            return None
        raise AnswerMissing(f"The call {name!r} was not answered: {outcome.why}.")


def answer_decoder(method: Callable[..., Any], *, together: bool = False) -> Callable[[bytes], Any]:
    """Bytes to what the method is annotated to return; ValueError if it is not annotated.

    To an item of it, where questions are asked `together`.
    """
    hints = typing.get_type_hints(method)
    if "return" not in hints:
        shape = "list[Answer]" if together else "Answer"
        raise ValueError(f"{method.__name__} must say what it returns: write -> {shape}")
    answer = hints["return"]
    if together:
        if typing.get_origin(answer) is not list:
            raise ValueError(
                f"{method.__name__} is asked many questions together: write -> list[Answer]"
            )
        (answer,) = typing.get_args(answer)
    return msgspec.msgpack.Decoder(answer, dec_hook=from_plain).decode
