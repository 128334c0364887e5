"""Rules that need to know how long records are: the longest sequence, and the memory of loaders."""

from __future__ import annotations

from cosmos_reason.base.findings import ERROR, WARNING
from cosmos_reason.base.fix import Fix
from cosmos_reason.remote import model_names
from cosmos_reason.rules.case import TRAINING, Case, Rule
from cosmos_reason.rules.evaluation import reads_records
from cosmos_reason.rules.keys import LOADERS, PREFETCH
from cosmos_reason.spec import actions, quantizing

DEFAULT_LENGTH = 40960
FEWEST_TOKENS = 4096  # of a record that calibrates
LOADER_GIB = 32  # host memory of decoded frames on one rank that is still ordinary


def too_long(case: Case):
    """Return the records whose tokens, with room for what is generated, exceed the longest
    sequence."""
    if not case.tokens:
        return None
    from cosmos_reason.estimate import record_tokens

    rows = record_tokens.room(case.action, case).too_long(case.tokens)
    if not rows:
        return None
    worst = max(record.total for record in case.tokens)
    words = f"{len(rows)} of {len(case.tokens)} records have up to {worst} tokens"
    return words, [case.tokens[row].id for row in rows]


def longer_max_length(case: Case) -> int | Fix | None:
    """Return a length in which every record fits, or, when that is beyond the default, a pixel
    budget that makes them fit."""
    from cosmos_reason.estimate import record_tokens

    room = record_tokens.room(case.action, case)
    needed = room.limit_for(case.tokens)
    if needed <= max(room.limit, DEFAULT_LENGTH):
        return needed
    # Text cannot get shorter; what is left of the sequence is for frames, with a tenth to spare.
    left = room.most - max(record.text for record in case.tokens)
    budget = {case.vision + "total_pixels": max(1, int(0.9 * left)) * case.token_side**2}
    # A floor of each frame wins over the budget of all: where it does, it has to go.
    for changes in (budget, budget | {case.vision + "min_pixels": None}):
        records = case.tokens_with(changes)  # none where the changes make no sense
        if records and not room.too_long(records):
            return Fix(changes=changes)
    return None


def enough_to_calibrate(case: Case) -> int | Fix | None:
    """Return a length in which every record fits, or smaller pictures for the length there is; at
    least that of an ordinary record."""
    needed = longer_max_length(case) if too_long(case) else FEWEST_TOKENS
    if isinstance(needed, int):
        return max(needed, FEWEST_TOKENS)
    least = max(case(quantizing.LENGTH), FEWEST_TOKENS)
    return needed | Fix(changes={quantizing.LENGTH: least}) if needed else None


def loader_gib(case: Case) -> float:
    """Return the GiB of decoded frames that the loaders of one rank hold ready when every record is
    as long as the longest."""
    if not case.tokens:
        return 0
    from cosmos_reason.estimate import record_tokens

    most = max(record.vision for record in case.tokens)
    frames = model_names.known_family(case.model).frames_per_token
    patch = case.token_side // 2
    return record_tokens.loader_bytes(case, most, patch, frames) / 2**30


def fewer_batches(case: Case) -> Fix:
    from cosmos_reason.estimate import record_tokens

    # One batch ahead may be little enough; else none is read ahead.
    ready = case(LOADERS) * (case(PREFETCH) or record_tokens.TORCH_PREFETCH)
    if loader_gib(case) / ready <= LOADER_GIB:
        return Fix(changes={LOADERS: 1, PREFETCH: 1})
    return Fix(changes={LOADERS: 0, PREFETCH: None})


def short_length(case: Case):
    own = (model_names.known_family(case.model).defaults or {}).get("max_length", DEFAULT_LENGTH)
    usual = min(own, model_names.positions(case.model) or DEFAULT_LENGTH)
    return case("policy.model_max_length") < usual and not are_lengths_known(case)


def are_lengths_known(case: Case) -> bool:
    """Return whether all records could be counted; then SPEC-LENGTH-SAMPLE judges them."""
    return bool(case.tokens) and not any(record.problem for record in case.tokens)


def beyond_positions(case: Case) -> str:
    positions = model_names.positions(case.model)
    limit = case(actions.LENGTHS[case.action][0])
    return f"the model has {positions} positions" if positions and limit > positions else ""


def length_of_positions(case: Case) -> int | None:
    """Return the model's positions, unless a record is longer."""
    positions = model_names.positions(case.model)
    _, generated = actions.LENGTHS[case.action]
    longest = max((record.total for record in case.tokens), default=0)
    kept = case(generated) if generated else 0
    return positions if longest + kept <= positions else None


RULES = (
    # cosmos-rl says that it skips such a record, asks for the same one 50 times, and ends.
    Rule(
        "SPEC-LENGTH-SAMPLE", ERROR, TRAINING, "policy.model_max_length",
        "a record that does not fit, in grpo with rollout.max_response_length, ends the run; "
        "frames and pixels (total_pixels, min_pixels) make its length",
        too_long, fix=longer_max_length,
    ),
    # vLLM: "decoder prompt is longer than the maximum model length".
    Rule(
        "SPEC-LENGTH-ANSWER", ERROR, "evaluate", "model.max_length", "prompt and answer must fit",
        lambda case: case.engine == "tao" and too_long(case),
        fix=longer_max_length,
    ),
    # A cut goes through the middle of a clip's tokens, which then match no features.
    Rule(
        "SPEC-LENGTH-CALIBRATION", ERROR, "quantize", quantizing.LENGTH,
        "a record that is cut fails; 8 frames of 1080p alone are 2,880 tokens",
        lambda case: reads_records(case)
        and (too_long(case) or case(quantizing.LENGTH) < FEWEST_TOKENS),
        fix=enough_to_calibrate,
    ),
    # Frames wait in host memory as 32-bit floats: eight ranks with four workers can fill 290 GB.
    Rule(
        "SPEC-LOADER-MEMORY", WARNING, "train", PREFETCH, "host memory may not suffice",
        lambda case: (gib := loader_gib(case)) > LOADER_GIB
        and f"{LOADERS} x it: up to {gib:.0f} GiB of decoded frames on each rank",
        fix=fewer_batches,
    ),
    # Annotations that were edited since would be judged by the lengths of the old ones.
    Rule(
        "SPEC-FACTS-OTHER", WARNING, "train evaluate quantize", "--dataset-facts",
        "they describe other annotations",
        lambda case: case.has_other_facts and f"facts are of {case.facts.get('annotations')}",
    ),
    # The published recipes with shorter lengths have few frames, and their lengths were counted.
    Rule(
        "SPEC-LENGTH-LOW", WARNING, TRAINING, "policy.model_max_length",
        f"below {DEFAULT_LENGTH}, and how long records are is not known (--dataset-facts); "
        "one longer record, vision tokens included, ends the run",
        short_length,
    ),
    Rule(
        "SPEC-LENGTH-POSITIONS", ERROR, "grpo", "policy.model_max_length",
        "vLLM refuses to start with more than the model has",
        beyond_positions, fix=length_of_positions,
    ),
    Rule(
        "SPEC-LENGTH-POSITIONS-TRAIN", WARNING, "train", "policy.model_max_length",
        "longer records would be trained at positions that the model never learned",
        lambda case: (detail := beyond_positions(case))
        and not (are_lengths_known(case) and length_of_positions(case)) and detail,
        fix=length_of_positions,
    ),
)  # fmt: skip
