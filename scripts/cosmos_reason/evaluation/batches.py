"""The output of a batch (`vllm run-batch`, OpenAI's Batch API) as rows: a line for each request, in
any order, with its `custom_id` and what a server answered. Questions and ground truths are not in
it: they stay in the annotations."""

from __future__ import annotations

CUT = "length"  # finish_reason of a text that max_tokens ended


def is_line(record: object) -> bool:
    """Return whether it is a line of a batch's output."""
    if not isinstance(record, dict) or "custom_id" not in record:
        return False
    return isinstance(record.get("response"), dict) or bool(record.get("error"))


def as_row(record: dict) -> dict:
    """Return {id, response, error, is_cut} of a line; a request that failed has an error."""
    response = record.get("response") or {}
    body = response.get("body") if "body" in response else response
    error = _in_words(record.get("error"))
    if not error:
        status = response.get("status_code", 200)
        if isinstance(body, dict) and body.get("error"):
            error = _in_words(body["error"])
        elif status != 200:
            error = f"the server answered {status}"
    row = {"id": record["custom_id"], "response": None, "error": error or None}
    choices = body.get("choices") if isinstance(body, dict) else None
    if error or not isinstance(choices, list):
        return row
    texts = [_text(choice) for choice in choices]
    row["response"] = texts[0] if len(texts) == 1 else texts
    ends = [choice.get("finish_reason") for choice in choices if isinstance(choice, dict)]
    row["is_cut"] = CUT in ends
    return row


def _in_words(error: object) -> str:
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error) if error else ""


def _text(choice: object) -> object:
    """Return what a choice says, "" where max_tokens ended its reasoning before it said anything;
    None for what is no choice."""
    if not isinstance(choice, dict):
        return None
    message = choice.get("message")
    if not isinstance(message, dict):
        return choice.get("text")
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content or ""
