# SPILLWAY_HAVE_MPI: whether the module can be built by which several processes train together. A machine without MPI
# is normal; only -DSPILLWAY_MPI=ON makes its absence an error. The program itself never links it.
set(SPILLWAY_HAVE_MPI OFF)
if(NOT SPILLWAY_MPI STREQUAL "OFF")
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(SPILLWAY_HAVE_MPI ON)
  elseif(SPILLWAY_MPI STREQUAL "ON")
    message(FATAL_ERROR "SPILLWAY_MPI=ON, but no MPI was found. Install libopenmpi-dev, or configure with "
                        "-DSPILLWAY_MPI=AUTO.")
  endif()
endif()
message(STATUS "MPI: ${SPILLWAY_HAVE_MPI}")
