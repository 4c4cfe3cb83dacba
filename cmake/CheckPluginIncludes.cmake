# Fails when a plugin, or a header of the SDK, includes a header of core/ or cli/: all that a plugin sees of ours is the SDK.
#   cmake -DROOT=<source folder> -P CheckPluginIncludes.cmake

file(GLOB_RECURSE _files LIST_DIRECTORIES false RELATIVE ${ROOT}
  ${ROOT}/plugins/*.cpp ${ROOT}/plugins/*.hpp ${ROOT}/plugins/*.h ${ROOT}/plugins/*.c ${ROOT}/plugins/*.cu
  ${ROOT}/plugins/*.cuh ${ROOT}/sdk/include/*.hpp ${ROOT}/sdk/include/*.h ${ROOT}/sdk/template/*.cpp
  ${ROOT}/sdk/template/*.hpp)
set(_found "")
foreach(_file IN LISTS _files)
  file(STRINGS ${ROOT}/${_file} _includes REGEX "^[ \t]*#[ \t]*include[ \t]*[\"<]((\\.\\./)+|capstan/)?(core|cli)/")
  foreach(_include IN LISTS _includes)
    string(APPEND _found "  ${_file}: ${_include}\n")
  endforeach()
endforeach()
if(_found)
  message(FATAL_ERROR
    "A plugin may include sdk/include/capstan and nothing else of this project:\n${_found}"
    "Use what the SDK offers, or extend the SDK.")
endif()
list(LENGTH _files _count)
message(STATUS "${_count} files of plugins and SDK include nothing of core/ or cli/")
