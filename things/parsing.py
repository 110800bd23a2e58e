"""What a pydantic model refuses, as a refusal of ours with a JSON pointer to each fault."""

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from things.errors import Invalid, Problem
from things.pointers import pointer

_PREFIX = "Value error, "
"""What pydantic writes before the text of a validator's own."""

_M = TypeVar("_M", bound=BaseModel)


def parsed(model: type[_M], document: object) -> _M:
    """`document` as `model`; raises Invalid that names every fault."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise invalid(error, document) from error


def invalid(error: ValidationError, document: object) -> Invalid:
    """The refusal of `document`."""
    problems = [
        Problem(pointer=pointer(*_steps(document, one["loc"])), detail=one["msg"].removeprefix(_PREFIX))
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return Invalid(f"{problems[0].pointer or 'input'}: {problems[0].detail}", problems)


def _steps(document: object, location: Sequence[str | int]) -> list[str | int]:
    """Where in `document` a fault lies: a location without the names of a union's alternatives."""
    steps: list[str | int] = []
    value = document
    for place, step in enumerate(location):
        if isinstance(value, dict) and isinstance(step, str) and (step in value or place + 1 == len(location)):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            continue
        steps.append(step)
    return steps
