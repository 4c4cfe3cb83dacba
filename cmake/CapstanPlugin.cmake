# capstan_add_plugin: the one way to build a plugin, in this tree and, from the installed SDK, anywhere else.
#
#   capstan_add_plugin(lion
#     KIND optimizer            # one of CAPSTAN_PLUGIN_KINDS
#     TIER stable               # stable: LibTorch's stable headers only, loads beside any LibTorch from 2.11 on
#                               # pinned: all of ATen and torch::nn, loads beside the exact LibTorch of this build only
#                               # none:   uses nothing of LibTorch
#     SOURCES lion.cpp          # also .cu, where CUDA is an enabled language
#     [MANIFEST plugin.toml]    # default: plugin.toml beside the CMakeLists.txt
#     [OUTPUT_NAME capstan_x]   # default: capstan_<kind>_<name>; must begin with capstan_ to be found
#     [LIBRARIES target ...])   # linked privately
#
# Makes lib/capstan/plugins/<kind>s/libcapstan_<kind>_<name>.so (target capstan_<kind>_<name>) with one exported symbol, no RUNPATH, no unresolved
# symbols, and the manifest in the ELF section .capstan.manifest, which `capstan plugins inspect` reads at the end of the build where the program
# CAPSTAN_PROGRAM is at hand.

set(CAPSTAN_PLUGIN_CMAKE_DIR ${CMAKE_CURRENT_LIST_DIR})
include(${CMAKE_CURRENT_LIST_DIR}/CapstanPluginKinds.cmake)
set(CAPSTAN_TORCH_STABLE_MIN "2.11")

# LibTorch is looked for when the first plugin needs it: monitors and schedulers in plain C++ build without.
macro(_capstan_find_libtorch)
  if(NOT TARGET capstan::torch_cpu OR NOT CAPSTAN_TORCH_BUILD_ID)
    list(PREPEND CMAKE_MODULE_PATH ${CAPSTAN_PLUGIN_CMAKE_DIR})
    find_package(LibTorch REQUIRED)
    list(POP_FRONT CMAKE_MODULE_PATH)
  endif()
endmacro()

function(capstan_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "KIND;TIER;MANIFEST;OUTPUT_NAME" "SOURCES;LIBRARIES")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "capstan_add_plugin(${name}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}.")
  endif()
  if(NOT arg_KIND IN_LIST CAPSTAN_PLUGIN_KINDS)
    list(JOIN CAPSTAN_PLUGIN_KINDS ", " _kinds)
    message(FATAL_ERROR "capstan_add_plugin(${name}): KIND must be one of ${_kinds}, got '${arg_KIND}'.")
  endif()
  if(NOT arg_TIER MATCHES "^(stable|pinned|none)$")
    message(FATAL_ERROR "capstan_add_plugin(${name}): TIER must be 'stable', 'pinned' or 'none', got '${arg_TIER}'.")
  endif()
  if(NOT arg_SOURCES)
    message(FATAL_ERROR "capstan_add_plugin(${name}): SOURCES is missing.")
  endif()
  if(NOT arg_MANIFEST)
    set(arg_MANIFEST plugin.toml)
  endif()
  if(NOT arg_OUTPUT_NAME)
    set(arg_OUTPUT_NAME capstan_${arg_KIND}_${name})
  endif()
  if(NOT arg_OUTPUT_NAME MATCHES "^capstan_")
    message(FATAL_ERROR
      "capstan_add_plugin(${name}): OUTPUT_NAME must begin with 'capstan_', got '${arg_OUTPUT_NAME}': only "
      "libcapstan_*.so is looked for.")
  endif()
  get_filename_component(manifest ${arg_MANIFEST} ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
  if(NOT EXISTS ${manifest})
    message(FATAL_ERROR "capstan_add_plugin(${name}): no manifest at ${manifest}. Write a plugin.toml beside the sources.")
  endif()

  if(NOT arg_TIER STREQUAL "none")
    _capstan_find_libtorch()
  endif()

  set(target capstan_${arg_KIND}_${name})
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/${target})
  file(MAKE_DIRECTORY ${generated})

  # The author's manifest, then what only the build knows.
  file(READ ${manifest} text)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${manifest})
  string(APPEND text "\n[abi]\nplugin = \"${CAPSTAN_PLUGIN_ABI}\"\n\n[abi.torch]\ntier = \"${arg_TIER}\"\n")
  if(arg_TIER STREQUAL "stable")
    string(APPEND text "min = \"${CAPSTAN_TORCH_STABLE_MIN}\"\n")
  elseif(arg_TIER STREQUAL "pinned")
    string(APPEND text "version = \"${CAPSTAN_TORCH_VERSION}\"\nbuild_id = \"${CAPSTAN_TORCH_BUILD_ID}\"\n")
  endif()
  file(CONFIGURE OUTPUT ${generated}/manifest.toml CONTENT "${text}" @ONLY)
  set(CAPSTAN_MANIFEST_FILE ${generated}/manifest.toml)
  configure_file(${CAPSTAN_PLUGIN_CMAKE_DIR}/manifest.c.in ${generated}/manifest.c @ONLY)
  set_source_files_properties(${generated}/manifest.c PROPERTIES
    OBJECT_DEPENDS ${generated}/manifest.toml SKIP_PRECOMPILE_HEADERS ON)

  add_library(${target} MODULE ${arg_SOURCES} ${generated}/manifest.c)
  target_link_libraries(${target} PRIVATE capstan::sdk ${arg_LIBRARIES})
  if(TARGET capstan_warnings)
    target_link_libraries(${target} PRIVATE capstan_warnings)
  endif()
  if(arg_TIER STREQUAL "stable")
    target_link_libraries(${target} PRIVATE capstan::torch_cpu)
    target_compile_definitions(${target} PRIVATE TORCH_TARGET_VERSION=0x020b000000000000)
  elseif(arg_TIER STREQUAL "pinned")
    target_link_libraries(${target} PRIVATE capstan::torch_cpu)
  endif()
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:C,CXX>:-fno-gnu-unique;-ffile-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}=.;-fdata-sections;-ffunction-sections>")
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${arg_OUTPUT_NAME}
    CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON SKIP_BUILD_RPATH ON INSTALL_RPATH ""
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/capstan/plugins/${arg_KIND}s)
  target_link_options(${target} PRIVATE
    -Wl,--version-script=${CAPSTAN_PLUGIN_CMAKE_DIR}/plugin.version -Wl,--gc-sections)
  # A sanitizer's runtime is linked into the program, not into its plugins.
  if(NOT CAPSTAN_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  # The program reads the manifest out of what was built, so that a manifest with errors fails the build. In Capstan's own
  # tree it is a target, elsewhere the one that is installed with the SDK; without either nothing is checked.
  if(CAPSTAN_PROGRAM AND NOT CMAKE_CROSSCOMPILING)
    add_custom_command(TARGET ${target} POST_BUILD
      COMMAND ${CAPSTAN_PROGRAM} plugins inspect --manifest-only $<TARGET_FILE:${target}> VERBATIM)
  endif()
  if(CAPSTAN_INSTALL_PLUGINS)
    add_dependencies(${CAPSTAN_INSTALL_PLUGINS} ${target})
    # scripts/train builds none for GPUs where there is no driver; what it built can be installed all the same.
    set(optional "")
    if(CAPSTAN_INSTALL_PLUGINS STREQUAL "capstan_gpu_plugins")
      set(optional OPTIONAL)
    endif()
    install(TARGETS ${target} LIBRARY DESTINATION lib/capstan/plugins/${arg_KIND}s ${optional})
  endif()
endfunction()

# capstan_run_kernels_on_cpu(<target>): compiles the .cu sources of a target as C++, with kernels that run on the CPU, so that
# a test of them needs neither a GPU nor nvcc.
#
#   add_executable(lion_kernel_test lion_kernel_test.cpp lion_kernel.cu)
#   capstan_run_kernels_on_cpu(lion_kernel_test)
#
# Kernels must be started by capstan::sdk::launch() of capstan/sdk/launch.hpp, whose on_cpu/ folder has the part of CUDA that they
# may use. All sources of the target find that folder's cuda_runtime.h, cuda_bf16.h and cuda_fp16.h before a toolkit's. They are
# compiled without contraction of multiply-adds, as nvcc does it with --fmad=false, and need not be compiled for CUDA
# elsewhere: a plugin in the same folder may have the same .cu file in its SOURCES.
function(capstan_run_kernels_on_cpu target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(source_dir ${target} SOURCE_DIR)
  get_target_property(binary_dir ${target} BINARY_DIR)
  # A language is a property of a file in all targets of a folder. So the target gets C++ files that include the .cu files.
  set(replaced "")
  foreach(source IN LISTS sources)
    if(source MATCHES "\\.cu$")
      get_filename_component(kernel ${source} ABSOLUTE BASE_DIR ${source_dir})
      string(MAKE_C_IDENTIFIER ${source} name)
      set(source ${binary_dir}/${target}_on_cpu/${name}.cpp)
      file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${kernel}\"\n" @ONLY)
    endif()
    list(APPEND replaced ${source})
  endforeach()
  set_property(TARGET ${target} PROPERTY SOURCES ${replaced})
  target_compile_features(${target} PRIVATE cxx_std_20)
  get_target_property(sdk capstan::sdk INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(${target} BEFORE PRIVATE ${sdk}/capstan/sdk/on_cpu ${sdk})
  target_compile_options(${target} PRIVATE -ffp-contract=off -Wno-unknown-pragmas)
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
endfunction()
