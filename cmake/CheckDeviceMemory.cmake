# Fails when code of core/ makes a tensor by at::empty() and the like without saying where. LibTorch then takes host
# memory, which is wrong beside the tensors of a device, and no test on a CPU shows it.
#   cmake -DROOT=<source folder> -P CheckDeviceMemory.cmake

set(_found "")
set(_count 0)
file(GLOB_RECURSE _files LIST_DIRECTORIES false RELATIVE ${ROOT} ${ROOT}/core/*.cpp ${ROOT}/core/*.hpp)
foreach(_file IN LISTS _files)
  file(READ ${ROOT}/${_file} _text)
  # A list of CMake's ends at semicolons and counts brackets, which C++ has as well.
  string(REGEX REPLACE "[][]" " " _text "${_text}")
  string(REGEX REPLACE "//[^\n]*" "" _text "${_text}")
  string(REPLACE ";" "\n%" _text "${_text}")
  string(REGEX MATCHALL "at::(empty|zeros|ones|full|arange|rand|randn|scalar_tensor)\\([^%]*" _calls "${_text}")
  foreach(_call IN LISTS _calls)
    if(NOT _call MATCHES "[Oo]ptions|\\.device\\(|memory")
      string(REGEX REPLACE "[ \n]+" " " _call "${_call}")
      string(STRIP "${_call}" _call)
      string(APPEND _found "  ${_file}: ${_call}\n")
    endif()
  endforeach()
  math(EXPR _count "${_count} + 1")
endforeach()
if(_found)
  message(FATAL_ERROR
    "A tensor must say whose memory it takes:\n${_found}"
    "Take the options of a tensor beside it, ask the accelerator, or call host_empty() of core/host_tensor.hpp.")
endif()
if(_count EQUAL 0)
  message(FATAL_ERROR "There is no source file under '${ROOT}/core': ROOT must be the absolute path of the source folder.")
endif()
message(STATUS "${_count} files of core/ say where their tensors are")
