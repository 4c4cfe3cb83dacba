# capstan_unite: compiles the files of a library or program a few at a time, which takes about half as long, because
# most of a file's time is spent in reading the same headers.
#
#   capstan_unite(capstan
#     BATCH 4                 # files at a time: an edit compiles that many again
#     [ALONE log.cpp ...])    # files that cannot be compiled with others, as the target names them
#
# Files of one folder go together, so that a new file moves no other folder's batches. Two files of a batch may not give
# one name to different things in their unnamed namespaces: rename one where the compiler says so, or let it stand ALONE.
# -DCAPSTAN_UNITY=OFF compiles each file by itself.

option(CAPSTAN_UNITY "Compile a few files at a time: a whole build takes half as long" ON)

function(capstan_unite target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "BATCH" "ALONE")
  if(NOT CAPSTAN_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE file)
    cmake_path(RELATIVE_PATH file OUTPUT_VARIABLE name)
    if(name IN_LIST arg_ALONE OR NOT name MATCHES "\\.cpp$")
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      continue()
    endif()
    cmake_path(GET name PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    if(NOT DEFINED files_${folder})
      set(files_${folder} 0)
    endif()
    math(EXPR batch "${files_${folder}} / ${arg_BATCH}")
    math(EXPR files_${folder} "${files_${folder}} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${batch})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # GCC takes a file of a batch for a header, and warns of types there that only this file can name.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endfunction()
