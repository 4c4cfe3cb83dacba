"""Reads lines of JSON, [expected, document], and prints those on which jsonschema disagrees with the expectation."""

import json
import sys

import jsonschema

with open(sys.argv[1]) as file:
    schema = json.load(file)
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)
with open(sys.argv[2]) as lines:
    for line in lines:
        expected, document, name = json.loads(line)
        if validator.is_valid(document) != expected:
            reason = next((error.message[:200] for error in validator.iter_errors(document)), "")
            print(f"{name}: expected {'valid' if expected else 'invalid'}: {reason}")
