# Shared by the scripts of this folder: a folder for the time of a test, and the end of a test that fails.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "$(basename "$0" .sh): $*" >&2
  exit 1
}
