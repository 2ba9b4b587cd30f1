"""validate.py SCHEMA ANSWER: fails unless ANSWER is what SCHEMA allows, and is not with a field more in any of its objects.

The validator is python-jsonschema, which lb has nothing to do with. Prints how many objects the answer has.
"""

import json
import sys

from jsonschema import Draft202012Validator

# No field has this form.
STRAY = [[[]]]


def objects(value, path=()):
    """Each object inside of a value with its path, but for those of a configuration, which may have any fields."""
    if isinstance(value, dict):
        yield path, value
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    else:
        return
    for key, inner in inside:
        if path or key != "config" or "ok" not in value:
            yield from objects(inner, (*path, key))


def main():
    schema, answer = (json.load(open(path)) for path in sys.argv[1:])
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    wrong = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(answer)]
    if wrong:
        sys.exit("\n".join(wrong))
    found = list(objects(answer))
    for path, inner in found:
        inner["stray"] = STRAY
        if validator.is_valid(answer):
            sys.exit(f"{list(path)}: a field that the schema does not name is allowed")
        del inner["stray"]
    print(len(found))


main()
