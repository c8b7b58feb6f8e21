// By what names processes tell their journals apart, on one host and on several that share a
// folder.
#pragma once

#include <string>

namespace spillway {

// "HOST-1a2b3c4d": this host, and its kernel since it started. Any two processes with the same name
// see each other's file locks; two hosts never have the same, not even where they are called the
// same. Letters, digits and dashes.
std::string this_kernel();

// 16 hexadecimal digits that no other process has. Throws MachineError.
std::string random_word();

}  // namespace spillway
