# The installed tree: bin, libexec, lib, lib/capstan/plugins/<kind>s, include, and the package for find_package(Capstan).
# It may be moved as a whole; programs and plugins are found relative to the libraries.

include(CMakePackageConfigHelpers)

set(_package lib/cmake/Capstan)

install(TARGETS capstan capstan_config EXPORT CapstanTargets LIBRARY DESTINATION lib)
install(EXPORT CapstanTargets NAMESPACE Capstan:: DESTINATION ${_package})
# scripts/train builds no conformance kit; what it built can be installed all the same.
install(TARGETS capstan_conformance EXPORT CapstanConformanceTargets LIBRARY DESTINATION lib OPTIONAL)
install(EXPORT CapstanConformanceTargets NAMESPACE Capstan:: DESTINATION ${_package})
install(TARGETS capstan_conformance_program RUNTIME DESTINATION libexec OPTIONAL)

install(FILES ${PROJECT_SOURCE_DIR}/core/include/capstan/capstan.hpp DESTINATION include/capstan)
# What capstan.hpp includes, log lines and token files, and no more: the rest of core/ is nobody's business. The structs
# of the configuration's sections are those that config.hpp includes.
set(_config ${PROJECT_SOURCE_DIR}/core/config/config.hpp)
file(STRINGS ${_config} _sections REGEX "^#include \"core/config/typed/")
list(TRANSFORM _sections REPLACE "^#include \"core/(.*)\"$" "\\1")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_config})
foreach(_header
    comm/comms_log.hpp
    config/config.hpp config/typed/section_values.hpp ${_sections}
    data/token_data.hpp
    engine/engine.hpp engine/gather.hpp engine/initialize.hpp
    errors.hpp log.hpp
    model/batch.hpp model/model.hpp
    registry/manifest.hpp registry/plugin_call.hpp registry/plugin_index.hpp registry/registry.hpp
    schema/param_expression.hpp schema/param_rule.hpp schema/schema.hpp
    text/json.hpp text/problem.hpp)
  get_filename_component(_folder ${_header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/core/${_header} DESTINATION include/capstan/core/${_folder})
endforeach()

# The conformance kit, for the tests of plugins' authors.
install(FILES ${PROJECT_SOURCE_DIR}/sdk/conformance/conformance.hpp
    ${PROJECT_SOURCE_DIR}/sdk/conformance/conformance_tests.hpp
  DESTINATION include/capstan/sdk/conformance)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/CapstanConfig.cmake.in
  ${PROJECT_BINARY_DIR}/CapstanConfig.cmake INSTALL_DESTINATION ${_package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/CapstanConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/CapstanConfig.cmake ${PROJECT_BINARY_DIR}/CapstanConfigVersion.cmake
  DESTINATION ${_package})
install(TARGETS capstan_program RUNTIME DESTINATION bin)
install(TARGETS capstan_engine RUNTIME DESTINATION libexec)
install(FILES ${PROJECT_SOURCE_DIR}/configs/default.json DESTINATION share/capstan)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/capstan)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/plugins DESTINATION share/doc/capstan)
