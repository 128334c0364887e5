"""What a spec may hold that no schema can refuse."""

import pytest

from cosmos_reason.base import bundle
from cosmos_reason.spec import document, validation


@pytest.mark.parametrize("action", bundle.ACTIONS)
def test_a_path_that_no_file_system_takes_is_a_finding(action):
    """To ask whether it exists raises OSError, wherever that is asked."""
    for key in (key for key, schema in document.keys(action).items() if "x-path" in schema):
        for path, is_legal in (("/" + "n" * 255, True), ("a/" + "n" * 256, False)):
            spec = document.template(action)
            document.set_value(spec, key, path)
            found = {one.where for one in validation.validate(action, spec)}
            assert (key not in found) == is_legal
