# One program for each fuzz_*.cc below fuzz/. Run one: build/fuzz/fuzz_x -max_total_time=600 CORPUS
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "STAGELINK_FUZZ needs clang (libFuzzer); the preset `fuzz` selects it")
endif()

file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/fuzz/fuzz_*.cc)
foreach(source IN LISTS sources)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE stagelink_connector)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endforeach()
