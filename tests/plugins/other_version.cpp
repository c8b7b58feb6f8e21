// A plugin as another version of Spillway would have built it: of what spillway_plugin is, only its
// first member is the same for ever.
struct Contents {
  const char* abi;
};
extern "C" __attribute__((visibility("default"))) const Contents spillway_plugin;
const Contents spillway_plugin = {"spillway 0.0.1, headers 0123456789abcdef"};
