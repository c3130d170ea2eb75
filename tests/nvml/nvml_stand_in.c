/* A stand-in for the driver's management library: the symbols that are called, with the driver's calling conventions.

   It proves that calls, structures and status codes come through; it says nothing about how a GPU behaves.  The symbol
   kvcrucible_nvml_stand_in marks everything that it says as SIMULATED.  The environment sets what it does:

     STAND_IN_FAIL=name=code,...   these functions return a status (fields as field:83=3)
     STAND_IN_REASONS=mask         event reasons, and their counters run
     STAND_IN_BURST_MS=at          a thermal event of 20 ms, at so many ms after the start: for the counter alone
     STAND_IN_RESET_MS=at          all counters begin again, at so many ms after the start
     STAND_IN_PIDS=1,2,...         processes with a context
     STAND_IN_WATTS=300            true power;  STAND_IN_SHOWN_WATTS: what the power field says
     STAND_IN_UNCORRECTED=1        an uncorrected error each second;  STAND_IN_MIG=1: a split GPU  */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int kvcrucible_nvml_stand_in = 1;

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
typedef void *Device;
static int64_t started;

static int64_t now_ns(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}
static double ms(void) { return (now_ns() - started) / 1e6; }
static double setting(const char *name, double otherwise) {
  const char *value = getenv(name);
  return value && *value ? strtod(value, NULL) : otherwise;
}
static int fault(const char *name) {
  const char *at = getenv("STAND_IN_FAIL");
  size_t length = strlen(name);
  for (; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (!strncmp(at, name, length) && at[length] == '=') return atoi(at + length + 1);
  return OK;
}
#define FAULT(name) do { int code = fault(#name); if (code) return code; } while (0)

static double since_reset_ms(void) {
  double at = ms(), reset = setting("STAND_IN_RESET_MS", -1);
  return reset >= 0 && at >= reset ? at - reset : at + 1e6;
}
static uint64_t energy_mj(void) { /* renewed each 20 ms */
  return (uint64_t)(setting("STAND_IN_WATTS", 300) * 20 * (int64_t)(since_reset_ms() / 20));
}
static uint64_t mask(void) { return (uint64_t)strtoul(getenv("STAND_IN_REASONS") ? getenv("STAND_IN_REASONS") : "0", NULL, 0); }
static uint64_t counter_ns(uint64_t bit) {
  double burst = setting("STAND_IN_BURST_MS", -1), held = mask() & bit ? since_reset_ms() : 0;
  if (bit == 0x40 && burst >= 0 && ms() >= burst) held += 20;
  return (uint64_t)(held * 1e6);
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; FAULT(nvmlInitWithFlags); if (!started) started = now_ns(); return OK; }
int nvmlShutdown(void) { return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, Device *d) { if (i) return NOT_FOUND; *d = (Device)1; return OK; }
static int put(char *out, unsigned size, const char *words) { snprintf(out, size, "%s", words); return OK; }
int nvmlDeviceGetName(Device d, char *out, unsigned size) { (void)d; FAULT(nvmlDeviceGetName); return put(out, size, "stand-in"); }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return put(out, size, "0.0"); }
int nvmlSystemGetCudaDriverVersion(int *v) { *v = 13000; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(Device d, unsigned *mw) { (void)d; *mw = 700000; return OK; }
int nvmlDeviceGetMigMode(Device d, unsigned *now, unsigned *next) { (void)d; FAULT(nvmlDeviceGetMigMode); *now = *next = (unsigned)setting("STAND_IN_MIG", 0); return OK; }
int nvmlDeviceGetClockInfo(Device d, int kind, unsigned *mhz) { (void)d; FAULT(nvmlDeviceGetClockInfo); *mhz = kind == 2 ? 3201 : 1980; return OK; }
int nvmlDeviceGetCurrentClocksEventReasons(Device d, unsigned long long *out) { (void)d; FAULT(nvmlDeviceGetCurrentClocksEventReasons); *out = mask(); return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device d, unsigned long long *out) { (void)d; FAULT(nvmlDeviceGetCurrentClocksThrottleReasons); *out = mask(); return OK; }
int nvmlDeviceGetPowerUsage(Device d, unsigned *mw) { (void)d; FAULT(nvmlDeviceGetPowerUsage); *mw = (unsigned)(1000 * setting("STAND_IN_WATTS", 300)); return OK; }
int nvmlDeviceGetTotalEnergyConsumption(Device d, unsigned long long *mj) { (void)d; FAULT(nvmlDeviceGetTotalEnergyConsumption); *mj = energy_mj(); return OK; }
int nvmlDeviceGetTemperature(Device d, int sensor, unsigned *c) { (void)d; (void)sensor; *c = 55; return OK; }
typedef struct { unsigned version; int sensor, celsius; } Temperature;
int nvmlDeviceGetTemperatureV(Device d, Temperature *t) { (void)d; FAULT(nvmlDeviceGetTemperatureV); t->celsius = 55; return OK; }
typedef struct { unsigned version; int margin; } Margin;
int nvmlDeviceGetMarginTemperature(Device d, Margin *m) { (void)d; FAULT(nvmlDeviceGetMarginTemperature); m->margin = 32; return OK; }
typedef struct { unsigned long long total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(Device d, Memory *m) { (void)d; FAULT(nvmlDeviceGetMemoryInfo); m->total = 141ull << 30; m->used = 2ull << 30; m->free = m->total - m->used; return OK; }
int nvmlDeviceGetTotalEccErrors(Device d, int type, int counter, unsigned long long *n) { (void)d; (void)counter; FAULT(nvmlDeviceGetTotalEccErrors); *n = type == 1 ? (unsigned long long)(setting("STAND_IN_UNCORRECTED", 0) * ms() / 1000) : 0; return OK; }
int nvmlDeviceGetRemappedRows(Device d, unsigned *cor, unsigned *unc, unsigned *pending, unsigned *failed) { (void)d; FAULT(nvmlDeviceGetRemappedRows); *cor = *unc = *pending = *failed = 0; return OK; }

typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
static int processes(unsigned *count, Process *out, const char *list) {
  unsigned n = 0, room = out ? *count : 0;
  for (const char *at = list; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL, n++)
    if (n < room) out[n] = (Process){(unsigned)atoi(at), 1 << 20, 0xffffffff, 0xffffffff};
  *count = n;
  return n > room ? INSUFFICIENT_SIZE : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device d, unsigned *count, Process *out) { (void)d; FAULT(nvmlDeviceGetComputeRunningProcesses_v3); return processes(count, out, getenv("STAND_IN_PIDS")); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(Device d, unsigned *count, Process *out) { (void)d; FAULT(nvmlDeviceGetGraphicsRunningProcesses_v3); return processes(count, out, NULL); }

typedef struct {
  unsigned field, scope;
  long long at_us, latency_us;
  unsigned type, status;
  union { double d; unsigned u; unsigned long ul; unsigned long long ull; long long ll; int i; unsigned short us; } value;
} Field;
int nvmlDeviceGetFieldValues(Device d, int count, Field *fields) {
  (void)d;
  FAULT(nvmlDeviceGetFieldValues);
  for (int i = 0; i < count; i++) {
    char name[32];
    snprintf(name, sizeof name, "field:%u", fields[i].field);
    fields[i].status = (unsigned)fault(name);
    fields[i].type = 3;
    switch (fields[i].field) {
      case 74: fields[i].value.ull = counter_ns(0x4); break;
      case 76: fields[i].value.ull = counter_ns(0x10); break;
      case 269: fields[i].value.ull = counter_ns(0x20); break;
      case 270: fields[i].value.ull = counter_ns(0x40); break;
      case 271: fields[i].value.ull = counter_ns(0x80); break;
      case 83: fields[i].value.ull = energy_mj(); break;
      case 186: fields[i].type = 1; fields[i].value.u = (unsigned)(1000 * setting("STAND_IN_SHOWN_WATTS", setting("STAND_IN_WATTS", 300))); break;
      case 82: fields[i].type = 1; fields[i].value.u = 61; break;
      default: fields[i].status = NOT_SUPPORTED;
    }
  }
  return OK;
}
