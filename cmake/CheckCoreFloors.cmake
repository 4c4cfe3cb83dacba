# Fails when a folder of core/ includes a header of a folder that stands above it. A fixed order of folders leaves no
# room for circles among them.
#   cmake -DROOT=<source folder> -P CheckCoreFloors.cmake

# From the ground up: each folder includes those before it in a list, never those after it. "." is the folder itself:
# errors, log and checksums of core/.
set(_core_floors . text process schema registry pretrained config tuning comm elastic memory model data checkpoint precision attention loss monitor zero parameters compression components keep engine run include)
# core/config has wings; "." is the face, config.hpp and what reads a configuration.
set(_config_floors typed language resolve rules . tools)

set(_found "")
set(_count 0)

# _check(<folder> <floors>): the headers included as "<folder>/<floor>/..." by the files of each floor.
function(_check folder floors)
  set(height 0)
  foreach(floor IN LISTS floors)
    set(height_of_${floor} ${height})
    math(EXPR height "${height} + 1")
  endforeach()
  file(GLOB_RECURSE files LIST_DIRECTORIES false RELATIVE ${ROOT}/${folder}
    ${ROOT}/${folder}/*.cpp ${ROOT}/${folder}/*.hpp ${ROOT}/${folder}/*.h)
  foreach(file IN LISTS files)
    set(own .)
    if(file MATCHES "^([^/]+)/")
      set(own ${CMAKE_MATCH_1})
    endif()
    if(NOT DEFINED height_of_${own})
      string(APPEND _found "  ${folder}/${file}: the folder '${own}' has no floor yet; give it one in CheckCoreFloors.cmake\n")
      continue()
    endif()
    file(STRINGS ${ROOT}/${folder}/${file} includes REGEX "^[ \t]*#[ \t]*include[ \t]*\"${folder}/[^\"]+")
    foreach(include IN LISTS includes)
      set(other .)
      if(include MATCHES "\"${folder}/([^/\"]+)/")
        set(other ${CMAKE_MATCH_1})
      endif()
      if(NOT DEFINED height_of_${other} OR height_of_${other} GREATER height_of_${own})
        string(APPEND _found "  ${folder}/${file}: ${include}\n")
      endif()
    endforeach()
    math(EXPR _count "${_count} + 1")
  endforeach()
  set(_found "${_found}" PARENT_SCOPE)
  set(_count ${_count} PARENT_SCOPE)
endfunction()

_check(core "${_core_floors}")
_check(core/config "${_config_floors}")
if(_found)
  list(JOIN _core_floors " < " _order)
  message(FATAL_ERROR
    "A folder of core/ may include those below it only (${_order}):\n${_found}"
    "Move what both need to the lower folder.")
endif()
if(_count EQUAL 0)
  message(FATAL_ERROR "There is no source file under '${ROOT}/core': ROOT must be the absolute path of the source folder.")
endif()
message(STATUS "${_count} files of core/ include downwards only: 0 circles of folders")
