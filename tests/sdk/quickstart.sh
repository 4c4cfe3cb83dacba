#!/usr/bin/env bash
# quickstart.sh BUILD: does what docs/tutorials/first-plugin.md says, from the page that is installed, in a fresh prefix and
# a home of its own.
set -euo pipefail
readonly build=$1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >/dev/null
readonly page=$work/prefix/share/doc/capstan/docs/tutorials/first-plugin.md
[[ -e $work/prefix/share/doc/capstan/examples/plugins/signum/signum.cpp ]] || { echo "no examples installed"; exit 1; }

{ echo 'set -euxo pipefail'; awk '/^```sh$/ {on = 1; next} /^```$/ {on = 0} on' "$page"; } >"$work/commands.sh"
[[ $(grep -c '^capstan' "$work/commands.sh") -ge 6 ]] || { echo "the page has no commands"; exit 1; }
mkdir "$work/home"
cd "$work/home"
env -i PATH="$PATH" HOME="$work/home" PREFIX="$work/prefix" OMP_NUM_THREADS=2 bash "$work/commands.sh" >"$work/log" 2>&1 ||
  { cat "$work/log"; exit 1; }
for text in 'installed acme-signum 0.1.0' 'removed .*libcapstan_acme_signum.so' 'loading plugin acme-signum 0.1.0, .*/.local/share/'; do
  grep -q "$text" "$work/log" || { cat "$work/log"; echo "not said: $text"; exit 1; }
done

# The kit's headers need no folder but the installed include/: core/ and sdk/ are names that others have too.
echo '#include <capstan/sdk/conformance/conformance.hpp>' >"$work/kit.cpp"
c++ -std=c++20 -fsyntax-only -I"$work/prefix/include" "$work/kit.cpp"
if grep -rnE '#include "(core|sdk)/' "$work/prefix/include"; then exit 1; fi
