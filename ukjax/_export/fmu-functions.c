/* The functions of FMI 3.0, for model exchange and co-simulation, around the functions of a model.
 *
 * fmu-model.h has the sizes, the start values, the Runge-Kutta method, and the functions of the model:
 *     NS states s, NU inputs and NZ held numbers u, NY outputs y, NP parameters p;
 *     s' and y are functions of (s, t, u, p); what is held changes every PERIOD, if that is not zero.
 * Value references: 0 is the time; then follow s, s', the inputs, y, p and what is held, in this order.
 * Where the model is not certain of a result, functions return fmi3Discard and log why; nothing is guessed.
 */
#include "fmu-model.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined _WIN32
#define EXPORT __declspec(dllexport)
#elif defined __GNUC__
#define EXPORT __attribute__((visibility("default")))
#else
#define EXPORT
#endif

/* The types of FMI 3.0. */
typedef enum { OK, WARNING, DISCARD, ERROR, FATAL } Status;
typedef uint32_t Reference;
typedef const char *String;
typedef void (*Logger)(void *environment, Status status, String category, String message);

enum { OF_TIME = 0, OF_S = 1, OF_DS = OF_S + NS, OF_U = OF_DS + NS, OF_Y = OF_U + NU, OF_P = OF_Y + NY, OF_Z = OF_P + NP,
       END = OF_Z + NZ };
typedef enum { INSTANTIATED, INITIALIZATION, EVENT, CONTINUOUS, STEP, TERMINATED } Mode;

/* All that an instance remembers; kept and serialised as it is. One number more than needed: no array is empty. */
typedef struct {
    double t, h, tolerance, start;
    double s[NS + 1], u[NU + NZ + 1], p[NP + 1];
    int64_t samples;
    int32_t mode, is_new;
} Memory;

typedef struct {
    Memory now;
    double ds[NS + 1], y[NY + 1], held[NZ + 1];
    int certain;
    bool steps;
    void *environment;
    Logger logger;
    char name[64];
} Model;

static Status say(Model *m, Status status, String format, double x)
{
    char text[256];
    int length = snprintf(text, sizeof text, "%s: ", m->name);
    snprintf(text + length, sizeof text - (size_t)length, format, x);
    if (m->logger) m->logger(m->environment, status, status == DISCARD ? "uncertain" : "misuse", text);
    return status;
}

static Status misuse(Model *m, String text)
{
    if (m->logger) {
        char whole[256];
        snprintf(whole, sizeof whole, "%s: %s", m->name, text);
        m->logger(m->environment, ERROR, "misuse", whole);
    }
    return ERROR;
}

static Status uncertain(Model *m, double t)
{
    return say(m, DISCARD, "no certain result at t = %.9g: the rank of the constraints changes near this state, or "
                           "there is no motion", t);
}

/* Evaluates s', y and what is held if anything changed. Before the first sample that is what it would give. */
static Status evaluated(Model *m)
{
    Memory *x = &m->now;
    if (x->is_new) {
        double u[NU + NZ + 1];
        int certain = 1;
        memcpy(u, x->u, sizeof u);
        if (PERIOD > 0 && x->samples == 0) certain = modelSample(x->s, x->t, x->u, x->p, u + NU);
        m->certain = modelRates(x->s, x->t, u, x->p, m->ds, m->y) && certain;
        memcpy(m->held, u + NU, NZ * sizeof(double));
        x->is_new = 0;
    }
    return m->certain ? OK : uncertain(m, x->t);
}

/* The time of the next sample. */
static double next_sample(const Memory *x)
{
    return x->start + (double)x->samples * PERIOD;
}

/* Takes a sample if one is due. */
static Status sampled(Model *m)
{
    Memory *x = &m->now;
    double held[NZ + 1];
    if (!(PERIOD > 0) || x->t < next_sample(x) - 1e-9 * PERIOD) return OK;
    if (!modelSample(x->s, x->t, x->u, x->p, held)) return uncertain(m, x->t);
    memcpy(x->u + NU, held, NZ * sizeof(double));
    x->samples++;
    x->is_new = 1;
    return OK;
}

/* Whether a reference is one of those from `first` to the one before `end`; there may be none. */
static bool within(Reference k, Reference first, Reference end)
{
    return k >= first && k < end;
}

static bool is_one_of(const Model *m, int modes)
{
    return ((1 << m->now.mode) & modes) != 0;
}

enum { SETTING = 1 << INSTANTIATED | 1 << INITIALIZATION, RUNNING = 1 << EVENT | 1 << CONTINUOUS | 1 << STEP };

/* Creation and destruction. */

static void restart(Model *m)
{
    Memory *x = &m->now;
    memset(x, 0, sizeof *x);
    memcpy(x->s, start_states, NS * sizeof(double));
    memcpy(x->u, start_inputs, (NU + NZ) * sizeof(double));
    memcpy(x->p, start_parameters, NP * sizeof(double));
    x->tolerance = TOLERANCE;
    x->is_new = 1;
}

static Model *instance(String name, String token, bool steps, void *environment, Logger logger)
{
    Model *m = (Model *)calloc(1, sizeof *m);
    if (!m) return NULL;
    m->steps = steps;
    m->environment = environment;
    m->logger = logger;
    snprintf(m->name, sizeof m->name, "%s", name ? name : MODEL_NAME);
    restart(m);
    if (!token || strcmp(token, TOKEN) != 0) {
        misuse(m, "the instantiation token is not that of modelDescription.xml");
        free(m);
        return NULL;
    }
    return m;
}

EXPORT String fmi3GetVersion(void)
{
    return "3.0";
}

EXPORT Status fmi3SetDebugLogging(Model *m, bool on, size_t count, const String categories[])
{
    size_t i;
    for (i = 0; i < count; i++) {
        if (strcmp(categories[i], "uncertain") != 0 && strcmp(categories[i], "misuse") != 0)
            return misuse(m, "log categories are \"uncertain\" and \"misuse\"");
    }
    (void)on;
    return OK;
}

EXPORT Model *fmi3InstantiateModelExchange(String name, String token, String resources, bool visible, bool logs,
                                           void *environment, Logger logger)
{
    (void)resources;
    (void)visible;
    (void)logs;
    return instance(name, token, false, environment, logger);
}

EXPORT Model *fmi3InstantiateCoSimulation(String name, String token, String resources, bool visible, bool logs,
                                          bool events, bool early, const Reference required[], size_t count,
                                          void *environment, Logger logger, void *update)
{
    (void)resources;
    (void)visible;
    (void)logs;
    (void)early;
    (void)required;
    (void)update;
    if (count || events) {
        if (logger) logger(environment, ERROR, "misuse", "there are no intermediate variables, and no event mode");
        return NULL;
    }
    return instance(name, token, true, environment, logger);
}

EXPORT void fmi3FreeInstance(Model *m)
{
    free(m);
}

/* Modes. */

static Status changed(Model *m, int from, Mode to, String call)
{
    if (!is_one_of(m, from)) {
        char text[96];
        snprintf(text, sizeof text, "%s is not allowed in this mode", call);
        return misuse(m, text);
    }
    m->now.mode = to;
    return OK;
}

EXPORT Status fmi3EnterInitializationMode(Model *m, bool given, double tolerance, double start, bool ends, double end)
{
    (void)ends;
    (void)end;
    Status status = changed(m, 1 << INSTANTIATED, INITIALIZATION, "fmi3EnterInitializationMode");
    if (status != OK) return status;
    if (given && !(tolerance > 0)) return say(m, ERROR, "the tolerance must be positive, but is %g", tolerance);
    if (given) m->now.tolerance = tolerance;
    m->now.t = m->now.start = start;
    m->now.is_new = 1;
    return OK;
}

EXPORT Status fmi3ExitInitializationMode(Model *m)
{
    Status status = changed(m, 1 << INITIALIZATION, m->steps ? STEP : EVENT, "fmi3ExitInitializationMode");
    return status == OK ? sampled(m) : status;
}

EXPORT Status fmi3EnterEventMode(Model *m)
{
    return changed(m, m->steps ? 0 : 1 << CONTINUOUS, EVENT, "fmi3EnterEventMode");
}

EXPORT Status fmi3EnterContinuousTimeMode(Model *m)
{
    return changed(m, m->steps ? 0 : 1 << EVENT, CONTINUOUS, "fmi3EnterContinuousTimeMode");
}

EXPORT Status fmi3EnterStepMode(Model *m)
{
    return changed(m, 0, STEP, "fmi3EnterStepMode: there is no event mode");
}

EXPORT Status fmi3Terminate(Model *m)
{
    return changed(m, RUNNING, TERMINATED, "fmi3Terminate");
}

EXPORT Status fmi3Reset(Model *m)
{
    restart(m);
    return OK;
}

/* Variables. */

EXPORT Status fmi3GetFloat64(Model *m, const Reference which[], size_t count, double values[], size_t size)
{
    const Memory *x = &m->now;
    Status status = OK;
    size_t i;
    if (size != count) return say(m, ERROR, "there must be one value for each variable, but there are %.0f", (double)size);
    for (i = 0; i < count; i++) {
        Reference k = which[i];
        if (k >= END) return say(m, ERROR, "there is no variable %.0f", k);
        if (within(k, OF_DS, OF_U) || within(k, OF_Y, OF_P) || k >= OF_Z) {
            Status found = evaluated(m);
            if (found != OK) status = found;
        }
        values[i] = k == OF_TIME ? x->t : k < OF_DS ? x->s[k - OF_S] : k < OF_U ? m->ds[k - OF_DS]
                    : k < OF_Y ? x->u[k - OF_U] : k < OF_P ? m->y[k - OF_Y]
                    : k < OF_Z ? x->p[k - OF_P] : m->held[k - OF_Z];
    }
    return status;
}

EXPORT Status fmi3SetFloat64(Model *m, const Reference which[], size_t count, const double values[], size_t size)
{
    Memory *x = &m->now;
    size_t i;
    if (size != count) return say(m, ERROR, "there must be one value for each variable, but there are %.0f", (double)size);
    for (i = 0; i < count; i++) {
        Reference k = which[i];
        if (within(k, OF_S, OF_DS) && is_one_of(m, SETTING)) x->s[k - OF_S] = values[i];
        else if (within(k, OF_U, OF_Y) && !is_one_of(m, 1 << TERMINATED)) x->u[k - OF_U] = values[i];
        else if (within(k, OF_P, OF_Z) && is_one_of(m, SETTING | 1 << EVENT | 1 << STEP)) x->p[k - OF_P] = values[i];
        else return say(m, ERROR, "variable %.0f cannot be set in this mode", k);
    }
    x->is_new = 1;
    return OK;
}

#include "fmu-absent.h"

/* The memory of an instance. */

EXPORT Status fmi3GetFMUState(Model *m, void **kept)
{
    if (!*kept) *kept = malloc(sizeof(Memory));
    if (!*kept) return misuse(m, "there is no memory for a state");
    memcpy(*kept, &m->now, sizeof(Memory));
    return OK;
}

EXPORT Status fmi3SetFMUState(Model *m, void *kept)
{
    if (!kept) return without(m, "states to return to", 1);
    memcpy(&m->now, kept, sizeof(Memory));
    m->now.is_new = 1;
    return OK;
}

EXPORT Status fmi3FreeFMUState(Model *m, void **kept)
{
    (void)m;
    free(*kept);
    *kept = NULL;
    return OK;
}

EXPORT Status fmi3SerializedFMUStateSize(Model *m, void *kept, size_t *size)
{
    (void)m;
    (void)kept;
    *size = sizeof(Memory);
    return OK;
}

EXPORT Status fmi3SerializeFMUState(Model *m, void *kept, uint8_t bytes[], size_t size)
{
    if (size < sizeof(Memory)) return say(m, ERROR, "a state has more than %.0f bytes", (double)size);
    memcpy(bytes, kept, sizeof(Memory));
    return OK;
}

EXPORT Status fmi3DeserializeFMUState(Model *m, const uint8_t bytes[], size_t size, void **kept)
{
    if (size != sizeof(Memory)) return say(m, ERROR, "a state has not %.0f bytes", (double)size);
    if (!*kept) *kept = malloc(sizeof(Memory));
    if (!*kept) return misuse(m, "there is no memory for a state");
    memcpy(*kept, bytes, sizeof(Memory));
    return OK;
}

/* Derivatives. */

typedef struct {
    double t, s[NS + 1], u[NU + NZ + 1], p[NP + 1];
} Known;

/* The place of a known variable; NULL if it is none. */
static double *of_known(Known *x, Reference k)
{
    return k == OF_TIME ? &x->t : within(k, OF_S, OF_DS) ? &x->s[k - OF_S] : within(k, OF_U, OF_Y) ? &x->u[k - OF_U]
           : within(k, OF_P, OF_Z) ? &x->p[k - OF_P] : NULL;
}

/* The place of an unknown variable; states are outputs, too, and what is held does not change. NULL if it is none. */
static double *of_unknown(double *s, double *ds, double *y, double *held, Reference k)
{
    return within(k, OF_S, OF_DS) ? &s[k - OF_S] : within(k, OF_DS, OF_U) ? &ds[k - OF_DS]
           : within(k, OF_Y, OF_P) ? &y[k - OF_Y] : within(k, OF_Z, END) ? &held[k - OF_Z] : NULL;
}

EXPORT Status fmi3GetDirectionalDerivative(Model *m, const Reference unknowns[], size_t found, const Reference knowns[],
                                           size_t given, const double seed[], size_t seeds, double values[], size_t size)
{
    const Memory *x = &m->now;
    Known along;
    double ds[NS + 1], y[NY + 1], held[NZ + 1] = { 0 };
    size_t i;
    memset(&along, 0, sizeof along);
    if (seeds != given || size != found) return misuse(m, "there must be one number for each variable");
    for (i = 0; i < given; i++) {
        double *place = of_known(&along, knowns[i]);
        if (!place) return say(m, ERROR, "variable %.0f is not known", knowns[i]);
        *place += seed[i];
    }
    if (!modelTangent(x->s, x->t, x->u, x->p, along.s, along.t, along.u, along.p, ds, y)) return uncertain(m, x->t);
    for (i = 0; i < found; i++) {
        double *place = of_unknown(along.s, ds, y, held, unknowns[i]);
        if (!place) return say(m, ERROR, "variable %.0f is not unknown", unknowns[i]);
        values[i] = *place;
    }
    return OK;
}

EXPORT Status fmi3GetAdjointDerivative(Model *m, const Reference unknowns[], size_t found, const Reference knowns[],
                                       size_t given, const double seed[], size_t seeds, double values[], size_t size)
{
    const Memory *x = &m->now;
    Known back;
    double s[NS + 1], ds[NS + 1], y[NY + 1], held[NZ + 1] = { 0 };
    size_t i;
    memset(s, 0, sizeof s);
    memset(ds, 0, sizeof ds);
    memset(y, 0, sizeof y);
    if (seeds != found || size != given) return misuse(m, "there must be one number for each variable");
    for (i = 0; i < found; i++) {
        double *place = of_unknown(s, ds, y, held, unknowns[i]);
        if (!place) return say(m, ERROR, "variable %.0f is not unknown", unknowns[i]);
        *place += seed[i];
    }
    if (!modelAdjoint(x->s, x->t, x->u, x->p, ds, y, back.s, &back.t, back.u, back.p)) return uncertain(m, x->t);
    for (i = 0; i < NS; i++) back.s[i] += s[i];
    for (i = 0; i < given; i++) {
        double *place = of_known(&back, knowns[i]);
        if (!place) return say(m, ERROR, "variable %.0f is not known", knowns[i]);
        values[i] = *place;
    }
    return OK;
}

/* Model exchange. */

EXPORT Status fmi3EvaluateDiscreteStates(Model *m)
{
    (void)m;
    return OK;
}

EXPORT Status fmi3UpdateDiscreteStates(Model *m, bool *again, bool *ends, bool *nominals, bool *values, bool *timed,
                                       double *time)
{
    Status status = sampled(m);
    *again = *ends = *nominals = *values = false;
    *timed = PERIOD > 0;
    *time = next_sample(&m->now);
    return status;
}

EXPORT Status fmi3CompletedIntegratorStep(Model *m, bool no_return, bool *event, bool *ends)
{
    (void)m;
    (void)no_return;
    *event = *ends = false;
    return OK;
}

EXPORT Status fmi3SetTime(Model *m, double time)
{
    m->now.t = time;
    m->now.is_new = 1;
    return OK;
}

EXPORT Status fmi3SetContinuousStates(Model *m, const double states[], size_t count)
{
    if (count != NS) return say(m, ERROR, "there are other than %.0f states", (double)count);
    memcpy(m->now.s, states, NS * sizeof(double));
    m->now.is_new = 1;
    return OK;
}

EXPORT Status fmi3GetContinuousStates(Model *m, double states[], size_t count)
{
    if (count != NS) return say(m, ERROR, "there are other than %.0f states", (double)count);
    memcpy(states, m->now.s, NS * sizeof(double));
    return OK;
}

EXPORT Status fmi3GetContinuousStateDerivatives(Model *m, double rates[], size_t count)
{
    Status status = evaluated(m);
    if (count != NS) return say(m, ERROR, "there are other than %.0f states", (double)count);
    memcpy(rates, m->ds, NS * sizeof(double));
    return status;
}

EXPORT Status fmi3GetNominalsOfContinuousStates(Model *m, double nominals[], size_t count)
{
    size_t i;
    if (count != NS) return say(m, ERROR, "there are other than %.0f states", (double)count);
    for (i = 0; i < count; i++) nominals[i] = 1;
    return OK;
}

EXPORT Status fmi3GetNumberOfContinuousStates(Model *m, size_t *count)
{
    (void)m;
    *count = NS;
    return OK;
}

EXPORT Status fmi3GetNumberOfEventIndicators(Model *m, size_t *count)
{
    (void)m;
    *count = 0;
    return OK;
}

/* Co-simulation. */

/* The end of a step of length h, and its error as a part of the tolerance; false where it is not certain. */
static bool tried(const Memory *x, double h, double *end, double *error)
{
    double k[STAGES][NS + 1], y[NY + 1], s[NS + 1], sum = 0;
    int i, j, l;
    for (i = 0; i < STAGES; i++) {
        for (j = 0; j < NS; j++) {
            s[j] = 0;
            for (l = 0; l < i; l++) s[j] += matrix[i][l] * k[l][j];
            s[j] = x->s[j] + h * s[j];
        }
        if (!modelRates(s, x->t + times[i] * h, x->u, x->p, k[i], y)) return false;
    }
    for (j = 0; j < NS; j++) {
        double d = 0, e = 0, size;
        for (i = 0; i < STAGES; i++) {
            d += weights[i] * k[i][j];
            e += estimate[i] * k[i][j];
        }
        end[j] = x->s[j] + h * d;
        size = fmax(fabs(x->s[j]), fabs(end[j]));
        e = h * e / (x->tolerance * (1 + size));
        sum += e * e;
    }
    *error = NS ? sqrt(sum / NS) : 0;
    return *error == *error && *error < HUGE_VAL && modelProjected(end, x->t + h, x->p, end);
}

/* A first step: a part of the time in which states change by their size. */
static double first_step(Model *m, double most)
{
    double change = 0, size = 0;
    int j;
    if (evaluated(m) != OK) return most;
    for (j = 0; j < NS; j++) {
        change = fmax(change, fabs(m->ds[j]));
        size = fmax(size, 1 + fabs(m->now.s[j]));
    }
    return change > 0 ? fmin(most, 0.01 * size / change) : most;
}

EXPORT Status fmi3DoStep(Model *m, double start, double length, bool no_return, bool *event, bool *ends, bool *early,
                         double *reached)
{
    Memory *x = &m->now;
    double end = start + length, next[NS + 1];
    (void)no_return;
    *event = *ends = *early = false;
    *reached = x->t;
    if (!is_one_of(m, 1 << STEP)) return misuse(m, "fmi3DoStep is not allowed in this mode");
    if (!(length > 0)) return say(m, ERROR, "the length of a step must be positive, but is %g", length);
    if (fabs(start - x->t) > 1e-9 * fmax(fabs(end), length))
        return say(m, ERROR, "the step begins at another time than the last one ended, %.17g", x->t);
    x->t = start;
    if (sampled(m) != OK) return DISCARD;
    if (x->h <= 0) x->h = first_step(m, length);
    while (x->t < end) {
        double stop = PERIOD > 0 ? fmin(end, next_sample(x)) : end;
        double rest = stop - x->t, error = 0, h = x->h, factor = 0.25;
        bool last = h > 0.999 * rest, certain;
        if (last) h = rest;
        certain = tried(x, h, next, &error);
        if (certain) factor = fmin(5, fmax(0.2, 0.9 * pow(fmax(error, 1e-10), -1.0 / ORDER)));
        if (certain && error <= 1) {
            memcpy(x->s, next, NS * sizeof(double));
            x->t = last ? stop : x->t + h;
            x->is_new = 1;
            x->h = last ? fmax(x->h, h * factor) : h * factor;
            *reached = x->t;
            /* A sample at the end is for the next step if it depends on inputs, which may be others then. */
            if (!(NU > 0 && x->t >= end) && sampled(m) != OK) return DISCARD;
            continue;
        }
        x->h = h * fmin(factor, 0.9);
        if (x->t + x->h <= x->t + 1e-15 * fabs(end))
            return certain ? say(m, DISCARD, "steps become too short at t = %.9g", x->t) : uncertain(m, x->t);
    }
    *reached = x->t;
    return OK;
}
