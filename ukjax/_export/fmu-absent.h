/* Functions of FMI 3.0 about what the model does not have: a part of fmu-functions.c. */

/* There are no variables of other types. */
#define NO_VARIABLES(TYPE, KIND) \
    EXPORT Status fmi3Get##TYPE(Model *m, const Reference which[], size_t count, KIND values[], size_t size) \
    { \
        (void)which; \
        (void)values; \
        (void)size; \
        return count ? misuse(m, "there are no variables of type " #TYPE) : OK; \
    } \
    EXPORT Status fmi3Set##TYPE(Model *m, const Reference which[], size_t count, const KIND values[], size_t size) \
    { \
        (void)which; \
        (void)values; \
        (void)size; \
        return count ? misuse(m, "there are no variables of type " #TYPE) : OK; \
    }

NO_VARIABLES(Float32, float)
NO_VARIABLES(Int8, int8_t)
NO_VARIABLES(UInt8, uint8_t)
NO_VARIABLES(Int16, int16_t)
NO_VARIABLES(UInt16, uint16_t)
NO_VARIABLES(Int32, int32_t)
NO_VARIABLES(UInt32, uint32_t)
NO_VARIABLES(Int64, int64_t)
NO_VARIABLES(UInt64, uint64_t)
NO_VARIABLES(Boolean, bool)
NO_VARIABLES(String, String)

static Status without(Model *m, String what, size_t count)
{
    char text[96];
    snprintf(text, sizeof text, "there are no %s", what);
    return count ? misuse(m, text) : OK;
}

EXPORT Status fmi3GetBinary(Model *m, const Reference which[], size_t count, size_t sizes[], const uint8_t *values[],
                            size_t size)
{
    (void)which;
    (void)sizes;
    (void)values;
    (void)size;
    return without(m, "binary variables", count);
}

EXPORT Status fmi3SetBinary(Model *m, const Reference which[], size_t count, const size_t sizes[],
                            const uint8_t *const values[], size_t size)
{
    (void)which;
    (void)sizes;
    (void)values;
    (void)size;
    return without(m, "binary variables", count);
}

/* Clocks; arrays of numbers about them come last. */
#define NO_CLOCKS(NAME, A, B, C) \
    EXPORT Status NAME(Model *m, const Reference which[], size_t count, A *a, B *b, C *c) \
    { \
        (void)which; \
        (void)a; \
        (void)b; \
        (void)c; \
        return without(m, "clocks", count); \
    }
#define NO_PAIRS(NAME, A, B) \
    EXPORT Status NAME(Model *m, const Reference which[], size_t count, A *a, B *b) \
    { \
        (void)which; \
        (void)a; \
        (void)b; \
        return without(m, "clocks", count); \
    }
#define NO_VALUES(NAME, A) \
    EXPORT Status NAME(Model *m, const Reference which[], size_t count, A *a) \
    { \
        (void)which; \
        (void)a; \
        return without(m, "clocks", count); \
    }

NO_VALUES(fmi3GetClock, bool)
NO_VALUES(fmi3SetClock, const bool)
NO_PAIRS(fmi3GetIntervalDecimal, double, int)
NO_CLOCKS(fmi3GetIntervalFraction, uint64_t, uint64_t, int)
NO_VALUES(fmi3GetShiftDecimal, double)
NO_PAIRS(fmi3GetShiftFraction, uint64_t, uint64_t)
NO_VALUES(fmi3SetIntervalDecimal, const double)
NO_PAIRS(fmi3SetIntervalFraction, const uint64_t, const uint64_t)
NO_VALUES(fmi3SetShiftDecimal, const double)
NO_PAIRS(fmi3SetShiftFraction, const uint64_t, const uint64_t)

EXPORT Status fmi3GetNumberOfVariableDependencies(Model *m, Reference which, size_t *count)
{
    (void)which;
    *count = 0;
    return without(m, "dependencies of elements: see modelDescription.xml", 1);
}

EXPORT Status fmi3GetVariableDependencies(Model *m, Reference which, size_t elements[], Reference others[],
                                          size_t of_others[], int kinds[], size_t count)
{
    (void)which;
    (void)elements;
    (void)others;
    (void)of_others;
    (void)kinds;
    return without(m, "dependencies of elements: see modelDescription.xml", count);
}

/* Further functions. */

EXPORT Status fmi3EnterConfigurationMode(Model *m)
{
    return misuse(m, "there are no structural parameters");
}

EXPORT Status fmi3ExitConfigurationMode(Model *m)
{
    return misuse(m, "there are no structural parameters");
}

EXPORT Status fmi3GetEventIndicators(Model *m, double indicators[], size_t count)
{
    (void)indicators;
    return without(m, "event indicators", count);
}

EXPORT Status fmi3GetOutputDerivatives(Model *m, const Reference which[], size_t count, const int32_t orders[],
                                       double values[], size_t size)
{
    (void)which;
    (void)orders;
    (void)values;
    (void)size;
    return without(m, "derivatives of outputs", count);
}

EXPORT Status fmi3ActivateModelPartition(Model *m, Reference clock, double time)
{
    (void)clock;
    (void)time;
    return without(m, "clocks", 1);
}

EXPORT Model *fmi3InstantiateScheduledExecution(String name, String token, String resources, bool visible, bool logs,
                                                void *environment, Logger logger, void *update, void *lock, void *unlock)
{
    (void)name;
    (void)token;
    (void)resources;
    (void)visible;
    (void)logs;
    (void)update;
    (void)lock;
    (void)unlock;
    if (logger) logger(environment, ERROR, "misuse", "there is no scheduled execution");
    return NULL;
}
