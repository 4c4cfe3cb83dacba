# Targets that look at the sources: the plugin boundary, the core's floors and whose memory its tensors take (parts of every build),
# format, format-check and tidy.

add_custom_target(capstan_plugin_boundary ALL
  COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/CheckPluginIncludes.cmake
  COMMENT "Checking that no plugin includes a header of the core")
add_custom_target(capstan_core_floors ALL
  COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/CheckCoreFloors.cmake
  COMMENT "Checking that no folder of the core includes one above it")
add_custom_target(capstan_device_memory ALL
  COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/CheckDeviceMemory.cmake
  COMMENT "Checking that the core says whose memory its tensors take")

set(_sources "git ls-files '*.cpp' '*.hpp' '*.h' '*.cu'")
find_program(CAPSTAN_CLANG_FORMAT NAMES clang-format-14 clang-format)
if(CAPSTAN_CLANG_FORMAT)
  add_custom_target(format
    COMMAND sh -c "${_sources} | xargs ${CAPSTAN_CLANG_FORMAT} -i"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
  add_custom_target(format-check
    COMMAND sh -c "${_sources} | xargs ${CAPSTAN_CLANG_FORMAT} --dry-run --Werror"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
endif()
add_custom_target(tidy
  COMMAND sh -c "git ls-files 'core/*.cpp' 'cli/*.cpp' 'plugins/*.cpp' | xargs scripts/tidy"
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
