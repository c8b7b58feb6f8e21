// A library that is none of Spillway's.
extern "C" int answer();
extern "C" int answer() { return 42; }
