// In the place of NVTX: names of ranges, which are only counted ("nvtx push", "nvtx pop",
// "nvtx mark").
#pragma once

#include <cstdint>

#define NVTX_VERSION 3
#define NVTX_EVENT_ATTRIB_STRUCT_SIZE (static_cast<std::uint16_t>(sizeof(nvtxEventAttributes_t)))

using nvtxRangeId_t = std::uint64_t;
using nvtxDomainHandle_t = struct nvtxDomainRegistration_st*;

enum nvtxColorType_t { NVTX_COLOR_UNKNOWN = 0, NVTX_COLOR_ARGB = 1 };
enum nvtxMessageType_t { NVTX_MESSAGE_UNKNOWN = 0, NVTX_MESSAGE_TYPE_ASCII = 1 };
enum nvtxPayloadType_t {
  NVTX_PAYLOAD_UNKNOWN = 0,
  NVTX_PAYLOAD_TYPE_UNSIGNED_INT64 = 1,
  NVTX_PAYLOAD_TYPE_INT64 = 2,
  NVTX_PAYLOAD_TYPE_DOUBLE = 3
};
union nvtxMessageValue_t {
  const char* ascii;
  const wchar_t* unicode;
};
struct nvtxEventAttributes_t {
  std::uint16_t version, size;
  std::uint32_t category;
  std::int32_t colorType;
  std::uint32_t color;
  std::int32_t payloadType, reserved0;
  union payload_t {
    std::uint64_t ullValue;
    std::int64_t llValue;
    double dValue;
  } payload;
  std::int32_t messageType;
  nvtxMessageValue_t message;
};

int nvtxRangePushA(const char* message);
int nvtxRangePushEx(const nvtxEventAttributes_t* attributes);
int nvtxRangePop();
void nvtxMarkA(const char* message);
nvtxRangeId_t nvtxRangeStartA(const char* message);
nvtxRangeId_t nvtxRangeStartEx(const nvtxEventAttributes_t* attributes);
void nvtxRangeEnd(nvtxRangeId_t range);
nvtxDomainHandle_t nvtxDomainCreateA(const char* name);
void nvtxDomainDestroy(nvtxDomainHandle_t domain);
int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes);
int nvtxDomainRangePop(nvtxDomainHandle_t domain);
