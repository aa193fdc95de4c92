/* Stand-in for NVIDIA's management library (libnvidia-ml.so.1), and of the few functions of its CUDA driver (libcuda.so.1)
 * with which CUDA's order of GPUs is asked for.
 *
 * The answers are lines `name=value` of the file that FAKE_NVIDIA names, which is read at each call: what a test writes into
 * it is what the library says next. Names: `driver`, `count`, `cuda` (numbers of cards, by commas, in CUDA's order); of a card
 * `0.uuid`, `0.name`, ...; of an error `error.FUNCTION`, `0.error.FUNCTION`, `0.error` (of all that is asked of the card);
 * `0.lost_after`: of how many questions the card still answers in a process. A question without a value is not supported. Each call is
 * a line of FAKE_NVIDIA.calls. Numbers of errors are NVML's (nvml.h, nvmlReturn_t).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25 };
enum { CUDA_ERROR_NO_DEVICE = 100 };

typedef unsigned int u32;
typedef unsigned long long u64;

static char state[4096]; /* the file that the counters are of */
static int initialized;
static u64 questions[64];

static int value(const char *name, char *text, size_t size) {
    const char *path = getenv("FAKE_NVIDIA");
    if (path == NULL) return 0;
    if (strcmp(path, state) != 0) {
        snprintf(state, sizeof state, "%s", path);
        initialized = 0;
        memset(questions, 0, sizeof questions);
    }
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    char line[4096];
    size_t length = strlen(name);
    int found = 0;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, length) == 0 && line[length] == '=') {
            line[strcspn(line, "\n")] = '\0';
            snprintf(text, size, "%s", line + length + 1);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

static int number(const char *name, long long *result) {
    char text[64];
    if (!value(name, text, sizeof text)) return 0;
    *result = strtoll(text, NULL, 0);
    return 1;
}

static void note(const char *call) {
    char path[4200];
    snprintf(path, sizeof path, "%s.calls", getenv("FAKE_NVIDIA") ? getenv("FAKE_NVIDIA") : "/dev/null/none");
    FILE *file = fopen(path, "a");
    if (file == NULL) return;
    fprintf(file, "%s\n", call);
    fclose(file);
}

/* The error of a call that is of no card. */
static int begun(const char *function) {
    long long error = SUCCESS;
    char name[200];
    note(function);
    snprintf(name, sizeof name, "error.%s", function);
    number(name, &error);
    if (error == SUCCESS && !initialized) error = UNINITIALIZED;
    return (int)error;
}

/* The error of a card for a question. */
static int error_of(u64 card, const char *function) {
    long long error = SUCCESS, lost_after;
    char name[200];
    snprintf(name, sizeof name, "%llu.error", card);
    number(name, &error);
    snprintf(name, sizeof name, "%llu.error.%s", card, function);
    number(name, &error);
    snprintf(name, sizeof name, "%llu.lost_after", card);
    questions[card % 64]++;
    if (number(name, &lost_after) && questions[card % 64] > (u64)lost_after) error = GPU_IS_LOST;
    return (int)error;
}

static int asked(u64 card, const char *function) {
    int error = begun(function);
    return error == SUCCESS ? error_of(card, function) : error;
}

static u64 card_of(const void *device) { return (u64)device - 1; }

static int text_of(const void *device, const char *function, const char *name, char *buffer, u32 length) {
    char full[100], text[256];
    int error = asked(card_of(device), function);
    if (error != SUCCESS) return error;
    snprintf(full, sizeof full, "%llu.%s", card_of(device), name);
    if (!value(full, text, sizeof text)) return NOT_SUPPORTED;
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

static int number_of(const void *device, const char *function, const char *name, long long *result) {
    char full[100];
    int error = asked(card_of(device), function);
    if (error != SUCCESS) return error;
    snprintf(full, sizeof full, "%llu.%s", card_of(device), name);
    return number(full, result) ? SUCCESS : NOT_SUPPORTED;
}

/* The library ------------------------------------------------------------------------------------------------------- */

static int initialize(const char *function) {
    char name[200];
    long long error = SUCCESS;
    note(function);
    snprintf(name, sizeof name, "error.%s", "nvmlInit");
    number(name, &error);
    initialized += error == SUCCESS;
    return (int)error;
}

int nvmlInit(void) { return initialize(__func__); }
int nvmlInit_v2(void) { return initialize(__func__); }
int nvmlInitWithFlags(u32 flags) { return flags ? INVALID_ARGUMENT : initialize(__func__); }

int nvmlShutdown(void) {
    int error = begun(__func__);
    if (error == SUCCESS) initialized--;
    return error;
}

const char *nvmlErrorString(int error) {
    return error == GPU_IS_LOST ? "GPU is lost" : error == NOT_SUPPORTED ? "Not Supported" : "an error";
}

int nvmlSystemGetDriverVersion(char *version, u32 length) {
    int error = begun(__func__);
    if (error != SUCCESS) return error;
    return value("driver", version, length) ? SUCCESS : NOT_SUPPORTED;
}

static u32 count(void) {
    long long cards = 0;
    number("count", &cards);
    return (u32)cards;
}

int nvmlDeviceGetCount_v2(u32 *cards) {
    int error = begun(__func__);
    if (error == SUCCESS) *cards = count();
    return error;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, void **device) {
    if (index >= count()) return INVALID_ARGUMENT;
    int error = asked(index, __func__);
    if (error == SUCCESS) *device = (void *)(u64)(index + 1);
    return error;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    int error = begun(__func__);
    for (u32 card = 0; error == SUCCESS && card < count(); card++) {
        char name[100], text[256];
        snprintf(name, sizeof name, "%u.uuid", card);
        if (value(name, text, sizeof text) && strcmp(text, uuid) == 0) {
            *device = (void *)(u64)(card + 1);
            return error_of(card, __func__);
        }
    }
    return error == SUCCESS ? NOT_FOUND : error;
}

int nvmlDeviceGetUUID(void *device, char *uuid, u32 length) { return text_of(device, __func__, "uuid", uuid, length); }
int nvmlDeviceGetName(void *device, char *name, u32 length) { return text_of(device, __func__, "name", name, length); }

struct memory { u64 total, free, used; };
struct memory_v2 { u32 version; u64 total, reserved, free, used; };

static int memory_of(void *device, const char *function, struct memory_v2 *memory) {
    long long total, used, reserved = 0;
    char name[100];
    int error = number_of(device, function, "used", &used);
    if (error != SUCCESS) return error;
    snprintf(name, sizeof name, "%llu.reserved", card_of(device));
    number(name, &reserved);
    snprintf(name, sizeof name, "%llu.total", card_of(device));
    if (!number(name, &total)) return NOT_SUPPORTED;
    memory->total = (u64)total, memory->reserved = (u64)reserved, memory->used = (u64)used;
    memory->free = (u64)(total - reserved - used);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    struct memory_v2 now;
    int error = memory_of(device, __func__, &now);
    if (error == SUCCESS) *memory = (struct memory){now.total, now.free, now.used + now.reserved};
    return error;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    u32 version = memory->version;
    if (version != (sizeof *memory | 2 << 24)) return ARGUMENT_VERSION_MISMATCH;
    return memory_of(device, __func__, memory);
}

struct process { u32 pid; u64 used; u32 gpu_instance, compute_instance; };

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, u32 *length, struct process *processes) {
    char text[256] = "";
    u32 running = 0, room = *length;
    int error = text_of(device, __func__, "processes", text, sizeof text);
    if (error != SUCCESS) return error;
    for (char *word = strtok(text, ","); word != NULL; word = strtok(NULL, ","), running++)
        if (processes != NULL && running < room)
            processes[running] = (struct process){(u32)atol(word), ~0ULL, ~0U, ~0U}; /* memory unknown, as in containers */
    *length = running;
    return running > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* Questions with one number each: its name is the function's without what all begin with, and its argument's number. */

#define NUMBER(question, type)                                                          \
    int nvmlDeviceGet##question(void *device, type *answer) {                           \
        long long result;                                                               \
        int error = number_of(device, __func__, #question, &result);                    \
        if (error == SUCCESS) *answer = (type)result;                                   \
        return error;                                                                   \
    }

#define NUMBER_OF(question)                                                             \
    int nvmlDeviceGet##question(void *device, u32 kind, u32 *answer) {                  \
        long long result;                                                               \
        char name[100];                                                                 \
        snprintf(name, sizeof name, "%s.%u", #question, kind);                          \
        int error = number_of(device, __func__, name, &result);                         \
        if (error == SUCCESS) *answer = (u32)result;                                    \
        return error;                                                                   \
    }

#define MODE(question)                                                                  \
    int nvmlDeviceGet##question(void *device, u32 *current, u32 *pending) {             \
        long long result;                                                               \
        int error = number_of(device, __func__, #question, &result);                    \
        if (error == SUCCESS) *current = *pending = (u32)result;                        \
        return error;                                                                   \
    }

NUMBER(CurrPcieLinkGeneration, u32)
NUMBER(CurrPcieLinkWidth, u32)
NUMBER(MaxPcieLinkWidth, u32)
NUMBER(EnforcedPowerLimit, u32)
NUMBER(PowerUsage, u32)
NUMBER(TotalEnergyConsumption, u64)
NUMBER(CurrentClocksEventReasons, u64)
NUMBER(CurrentClocksThrottleReasons, u64)
NUMBER_OF(ClockInfo)
NUMBER_OF(MaxClockInfo)
NUMBER_OF(Temperature)
NUMBER_OF(TemperatureThreshold)
MODE(EccMode)
MODE(MigMode)

struct temperature { u32 version, sensor; int temperature; };
struct margin { u32 version; int margin; };

int nvmlDeviceGetTemperatureV(void *device, struct temperature *answer) {
    long long result;
    char name[100];
    if (answer->version != (sizeof *answer | 1 << 24)) return ARGUMENT_VERSION_MISMATCH;
    snprintf(name, sizeof name, "TemperatureV.%u", answer->sensor);
    int error = number_of(device, __func__, name, &result);
    if (error == SUCCESS) answer->temperature = (int)result;
    return error;
}

int nvmlDeviceGetMarginTemperature(void *device, struct margin *answer) {
    long long result;
    if (answer->version != (sizeof *answer | 1 << 24)) return ARGUMENT_VERSION_MISMATCH;
    int error = number_of(device, __func__, "MarginTemperature", &result);
    if (error == SUCCESS) answer->margin = (int)result;
    return error;
}

/* CUDA -------------------------------------------------------------------------------------------------------------- */

/* Of the cards of `cuda`, CUDA_VISIBLE_DEVICES has left these already: a test writes what CUDA would show. */
static int shown(int ordinal) {
    char text[256];
    if (!value("cuda", text, sizeof text)) return -1;
    for (char *word = strtok(text, ","); word != NULL; word = strtok(NULL, ","))
        if (ordinal-- == 0) return atoi(word);
    return -1;
}

int cuInit(u32 flags) {
    note(__func__);
    return flags == 0 && shown(0) >= 0 ? 0 : CUDA_ERROR_NO_DEVICE;
}

int cuDeviceGetCount(int *devices) {
    for (*devices = 0; shown(*devices) >= 0;) ++*devices;
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = shown(ordinal);
    return *device < 0 ? CUDA_ERROR_NO_DEVICE : 0;
}

/* Sixteen bytes: the hexadecimal digits of the card's uuid. */
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    char name[100], text[256];
    snprintf(name, sizeof name, "%d.uuid", device);
    if (!value(name, text, sizeof text)) return CUDA_ERROR_NO_DEVICE;
    const char *digits = strchr(text, '-');
    for (int byte = 0; byte < 16; byte++) {
        while (*digits == '-') digits++;
        if (sscanf(digits, "%2hhx", &uuid[byte]) != 1) return CUDA_ERROR_NO_DEVICE;
        digits += 2;
    }
    return 0;
}
