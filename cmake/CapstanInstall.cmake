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

# Installs a header of ours as include/capstan/<path>. In this tree headers name each other from its root, "core/log.hpp";
# installed they say "capstan/core/log.hpp", so that no folder core/ of another package is in their way.
function(_capstan_install_header source path)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${source})
  file(READ ${PROJECT_SOURCE_DIR}/${source} text)
  string(REGEX REPLACE "#include \"(core|sdk)/" "#include \"capstan/\\1/" text "${text}")
  set(installed ${PROJECT_BINARY_DIR}/installed_headers/${path})
  file(CONFIGURE OUTPUT ${installed} CONTENT "${text}" @ONLY)
  get_filename_component(folder ${path} DIRECTORY)
  install(FILES ${installed} DESTINATION include/capstan/${folder})
endfunction()

_capstan_install_header(core/include/capstan/capstan.hpp capstan.hpp)
# What capstan.hpp includes, log lines, data sets and snapshots, and no more: the rest of core/ is nobody's business. The structs
# of the configuration's sections are those that typed/config.hpp includes.
set(_config ${PROJECT_SOURCE_DIR}/core/config/typed/config.hpp)
file(STRINGS ${_config} _sections REGEX "^#include \"core/config/typed/")
list(TRANSFORM _sections REPLACE "^#include \"core/(.*)\"$" "\\1")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_config})
foreach(_header
    comm/comms_log.hpp
    components/model_host.hpp components/progress.hpp keep/load_options.hpp
    config/config.hpp config/typed/config.hpp config/typed/section_values.hpp ${_sections}
    data/batch_order.hpp data/dataset.hpp
    elastic/snapshot_folder.hpp elastic/snapshot_segment.hpp
    engine/engine.hpp engine/gather.hpp engine/initialize.hpp
    errors.hpp log.hpp
    model/batch.hpp model/model.hpp
    registry/call_in_progress.hpp registry/guilty_plugin.hpp registry/manifest.hpp registry/plugin_call.hpp
    registry/plugin_index.hpp registry/registry.hpp
    run/loaded_config.hpp run/pace.hpp run/run.hpp run/run_data.hpp run/run_parts.hpp
    schema/param_expression.hpp schema/param_rule.hpp schema/schema.hpp
    text/json.hpp text/problem.hpp)
  _capstan_install_header(core/${_header} core/${_header})
endforeach()

# The conformance kit, for the tests of plugins' authors.
foreach(_header sdk/conformance/conformance.hpp sdk/conformance/conformance_tests.hpp)
  _capstan_install_header(${_header} ${_header})
endforeach()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/CapstanConfig.cmake.in
  ${PROJECT_BINARY_DIR}/CapstanConfig.cmake INSTALL_DESTINATION ${_package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/CapstanConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/CapstanConfig.cmake ${PROJECT_BINARY_DIR}/CapstanConfigVersion.cmake
  DESTINATION ${_package})
install(TARGETS capstan_program RUNTIME DESTINATION bin)
install(TARGETS capstan_engine RUNTIME DESTINATION libexec)
install(FILES ${PROJECT_SOURCE_DIR}/configs/default.json DESTINATION share/capstan)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/capstan)
# With the paths of this tree, so that links between the pages, and from them to the examples, lead there.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION share/doc/capstan)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION share/doc/capstan PATTERN build EXCLUDE)
