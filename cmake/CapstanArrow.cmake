# libarrow and libparquet as they come in the wheel of pyarrow, with which `capstan data` reads Parquet and arrow files.
# Without them the program capstan-arrow is not built, and everything else is.
#
# Input:   CAPSTAN_ARROW_DIR, the wheel's `pyarrow` folder. Default: that of the project's .venv-arrow.
# Output:  capstan::arrow, where there is one; CAPSTAN_ARROW_VERSION, CAPSTAN_ARROW_SO_VERSION

# scripts/setup writes the file `installed` once the whole wheel is there.
if(NOT CAPSTAN_ARROW_DIR AND EXISTS ${PROJECT_SOURCE_DIR}/.venv-arrow/installed)
  file(GLOB _found ${PROJECT_SOURCE_DIR}/.venv-arrow/lib/python3*/site-packages/pyarrow)
  if(_found)
    list(GET _found 0 _found)
    get_filename_component(_found "${_found}" REALPATH)
    set(CAPSTAN_ARROW_DIR "${_found}" CACHE PATH "The pyarrow folder of the pyarrow wheel" FORCE)
  endif()
endif()
set(CAPSTAN_ARROW_VERSION "")
set(CAPSTAN_ARROW_SO_VERSION "")
if(NOT CAPSTAN_ARROW_DIR)
  message(STATUS "libarrow: none; scripts/setup --arrow gets it")
  return()
endif()
set(_config ${CAPSTAN_ARROW_DIR}/include/arrow/util/config.h)
if(NOT EXISTS ${_config})
  message(FATAL_ERROR
    "libarrow: no pyarrow wheel in '${CAPSTAN_ARROW_DIR}'. Pass -DCAPSTAN_ARROW_DIR=<site-packages>/pyarrow, or "
    "-UCAPSTAN_ARROW_DIR to do without Parquet.")
endif()
file(STRINGS ${_config} _lines REGEX "define ARROW_(VERSION_STRING|SO_VERSION) ")
string(REGEX REPLACE ".*VERSION_STRING \"([^\"]*)\".*" "\\1" CAPSTAN_ARROW_VERSION "${_lines}")
string(REGEX REPLACE ".*SO_VERSION \"([^\"]*)\".*" "\\1" CAPSTAN_ARROW_SO_VERSION "${_lines}")
message(STATUS "libarrow ${CAPSTAN_ARROW_VERSION} in ${CAPSTAN_ARROW_DIR}")

add_library(capstan::parquet SHARED IMPORTED)
set_target_properties(capstan::parquet PROPERTIES
  IMPORTED_LOCATION ${CAPSTAN_ARROW_DIR}/libparquet.so.${CAPSTAN_ARROW_SO_VERSION})
add_library(capstan::arrow SHARED IMPORTED)
set_target_properties(capstan::arrow PROPERTIES
  IMPORTED_LOCATION ${CAPSTAN_ARROW_DIR}/libarrow.so.${CAPSTAN_ARROW_SO_VERSION}
  INTERFACE_INCLUDE_DIRECTORIES ${CAPSTAN_ARROW_DIR}/include
  INTERFACE_LINK_LIBRARIES capstan::parquet)
