#!/usr/bin/env bash
# Gives scripts/skipped_tests runs that ctest might have written.
#
#   skipped_tests_test.sh SOURCE_DIR
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# run REASON: what is said of a run in which one test passed, and one was skipped for that reason.
run() {
  cat >"$work/tests.xml" <<XML
<testsuite>
  <testcase name="A.Passes" status="run"/>
  <testcase name="A.Skips" status="notrun"><skipped message="SKIP"/><system-out>x_test.cpp:7: Skipped
$1</system-out></testcase>
</testsuite>
XML
  "$source/scripts/skipped_tests" "$work/tests.xml" >"$work/out"
}
fail() {
  cat "$work/out" >&2
  echo "skipped_tests_test: $*" >&2
  exit 1
}
readonly source=$1

run "this machine has no NVIDIA GPU" || fail "a machine's own reason is no failure"
grep -qx "    1  this machine has no NVIDIA GPU" "$work/out" || fail "the reason is not told"
grep -qx "1 passed, 0 failed, 1 skipped" "$work/out" || fail "the tests are not counted"
! run "no .venv-trackers: scripts/setup makes it" || fail "what setup should have installed is missing, and nobody notices"
grep -q "scripts/setup makes it: NOT A KNOWN REASON" "$work/out" || fail "the unknown reason is not marked"

# Several runs are added up.
"$source/scripts/skipped_tests" "$work/tests.xml" "$work/tests.xml" >"$work/out" || true
grep -qx "2 passed, 0 failed, 2 skipped" "$work/out" || fail "two runs are not added up"

# A program that runs all of its tests counts as many tests, and as one when it dies before it sums up.
cat >"$work/tests.xml" <<XML
<testsuite>
  <testcase name="all_pass" status="run"><system-out>[  PASSED  ] 177 tests.
</system-out></testcase>
  <testcase name="some_fail" status="fail"><failure message=""/><system-out>[  PASSED  ] 20 tests.
[  FAILED  ] 2 tests, listed below:
[  FAILED  ] A.One
[  FAILED  ] A.Two
x_test.cpp:9: Failure
Expected equality of these values:
</system-out></testcase>
  <testcase name="dies" status="fail"><failure message=""/><system-out>[ RUN      ] B.Dies
</system-out></testcase>
</testsuite>
XML
"$source/scripts/skipped_tests" "$work/tests.xml" >"$work/out" || fail "failed tests are taken for unknown skips"
grep -qx "197 passed, 3 failed, 0 skipped" "$work/out" || fail "the tests of one process are not counted"
grep -qx "failed: some_fail" "$work/out" || fail "the failed test is not named"
grep -qx "  x_test.cpp:9: Failure" "$work/out" || fail "the failed assertion is not printed"
grep -qx "  \[ RUN      \] B.Dies" "$work/out" || fail "the last lines of a test without a failed assertion are not printed"
