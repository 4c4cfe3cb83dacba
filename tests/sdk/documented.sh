#!/usr/bin/env bash
# documented.sh BUILD TORCH: builds the back end that docs/reference/plugins/offload.md shows whole, against nothing but the installed SDK, and checks it.
set -euo pipefail
readonly build=$1 torch=$2 here=$(dirname "$0")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(shelf LANGUAGES C CXX)
find_package(CapstanSDK 1.0 REQUIRED)
capstan_add_plugin(shelf KIND offload TIER none SOURCES shelf.cpp)
END
printf '%s\n' 'schema = 1' 'name = "shelf"' 'version = "1.0"' '[[components]]' 'kind = "offload"' 'type = "Shelf"' >"$work/plugin.toml"
{
  printf '#include <%s>\n' cstring map string vector capstan/sdk/offload.hpp
  printf '%s\n' 'namespace sdk = capstan::sdk;' 'namespace {'
  awk '/^## A whole one/ {page = 1} page && /^```cpp/ {code = 1; next} /^```/ {code = 0} code' "$here/../../docs/reference/plugins/offload.md"
  printf '%s\n' '}' 'CAPSTAN_PLUGIN(&capstan::sdk::offload<Shelf, "Shelf">)'
} >"$work/shelf.cpp"
"$here/example.sh" "$build" "$torch" "$work"
