/* The LP state of a SCIP node, straight into buffers: the fast twin of observation.plain_observe.
 *
 * PySCIPOpt's wheels ship SCIP without headers, so the few functions needed are declared here and
 * looked up by name in the library that pyscipopt has loaded; `load` fails if one is missing.
 * Nothing is assumed to be static: what is kept from the node before is first compared with what
 * SCIP holds now, number by number.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct Scip Scip;
typedef struct Var Var;
typedef struct Col Col;
typedef struct Row Row;
typedef struct Sol Sol;

/* X(result, name, arguments): all that is called of SCIP. SCIP_Bool is unsigned int, SCIP_Real
 * double, enums int. */
#define SCIP_FUNCTIONS(X)                                                                          \
    X(int, SCIPmajorVersion, (void))                                                               \
    X(double, SCIPepsilon, (Scip *))                                                               \
    X(double, SCIPfeastol, (Scip *))                                                               \
    X(double, SCIPinfinity, (Scip *))                                                              \
    X(double, SCIPgetObjNorm, (Scip *))                                                            \
    X(long long, SCIPgetNLPs, (Scip *))                                                            \
    X(Var **, SCIPgetVars, (Scip *))                                                               \
    X(int, SCIPgetNVars, (Scip *))                                                                 \
    X(Row **, SCIPgetLPRows, (Scip *))                                                             \
    X(int, SCIPgetNLPRows, (Scip *))                                                               \
    X(Sol *, SCIPgetBestSol, (Scip *))                                                             \
    X(double, SCIPgetSolVal, (Scip *, Sol *, Var *))                                               \
    X(double, SCIPgetColRedcost, (Scip *, Col *))                                                  \
    X(double, SCIPgetRowLPActivity, (Scip *, Row *))                                               \
    X(double, SCIPgetVarPseudocostScore, (Scip *, Var *, double))                                  \
    X(int, SCIPgetLPBranchCands,                                                                   \
      (Scip *, Var ***, double **, double **, int *, int *, int *))                                \
    X(unsigned, SCIPvarIsInLP, (Var *))                                                            \
    X(Col *, SCIPvarGetCol, (Var *))                                                               \
    X(int, SCIPvarGetType, (Var *))                                                                \
    X(int, SCIPvarGetImplType, (Var *))                                                            \
    X(int, SCIPvarGetProbindex, (Var *))                                                           \
    X(double, SCIPvarGetObj, (Var *))                                                              \
    X(double, SCIPvarGetLPSol, (Var *))                                                            \
    X(double, SCIPvarGetAvgSol, (Var *))                                                           \
    X(double, SCIPvarGetLbLocal, (Var *))                                                          \
    X(double, SCIPvarGetUbLocal, (Var *))                                                          \
    X(double, SCIPcolGetObj, (Col *))                                                              \
    X(double, SCIPcolGetLb, (Col *))                                                               \
    X(double, SCIPcolGetUb, (Col *))                                                               \
    X(int, SCIPcolGetAge, (Col *))                                                                 \
    X(int, SCIPcolGetBasisStatus, (Col *))                                                         \
    X(int, SCIPcolGetVarProbindex, (Col *))                                                        \
    X(double, SCIProwGetLhs, (Row *))                                                              \
    X(double, SCIProwGetRhs, (Row *))                                                              \
    X(double, SCIProwGetConstant, (Row *))                                                         \
    X(double, SCIProwGetNorm, (Row *))                                                             \
    X(int, SCIProwGetNNonz, (Row *))                                                               \
    X(int, SCIProwGetNLPNonz, (Row *))                                                             \
    X(Col **, SCIProwGetCols, (Row *))                                                             \
    X(double *, SCIProwGetVals, (Row *))                                                           \
    X(double, SCIProwGetDualsol, (Row *))                                                          \
    X(int, SCIProwGetAge, (Row *))

#define DECLARE(result, name, arguments) static result(*name) arguments;
SCIP_FUNCTIONS(DECLARE)
#undef DECLARE

enum { BINARY = 0, INTEGER = 1, IMPLICIT = 2, CONTINUOUS = 3 };
enum { VARIABLE_FEATURES = 19, CONSTRAINT_FEATURES = 5 };
static const double AGE_OFFSET = 5.0;
static int loaded = 0;

/* What was found at the node before, to be compared with what is there now. */
typedef struct {
    PyObject_HEAD
    int num_variables, num_rows, valid;
    Py_ssize_t num_nonzeros, num_edges, num_constraints;
    double objective_norm;
    double *objective;   /* (num_variables) */
    Col **column_of;     /* (num_variables), NULL where a variable is not in the LP */
    int *row_size;       /* (num_rows) non-zeros of LP columns */
    unsigned char *side; /* (num_rows) bit 0: finite left side, bit 1: finite right side */
    double *norm;        /* (num_rows), 1 where it is not positive */
    double *cosine;      /* (num_rows), with the objective */
    Col **columns;       /* (num_nonzeros) */
    double *values;      /* (num_nonzeros) */
} Observer;

static void Observer_forget(Observer *self) {
    free(self->objective);
    free(self->column_of);
    free(self->row_size);
    free(self->side);
    free(self->norm);
    free(self->cosine);
    free(self->columns);
    free(self->values);
    self->objective = self->norm = self->cosine = self->values = NULL;
    self->column_of = self->columns = NULL;
    self->row_size = NULL;
    self->side = NULL;
    self->valid = 0;
}

static unsigned char finite_sides(Row *row, double infinity) {
    return (unsigned char)((fabs(SCIProwGetLhs(row)) < infinity ? 1 : 0) |
                           (fabs(SCIProwGetRhs(row)) < infinity ? 2 : 0));
}

static double positive_norm(Row *row) {
    double norm = SCIProwGetNorm(row);
    return norm > 0 ? norm : 1.0;
}

/* Whether the edges of the node before are those of this one. */
static int edges_unchanged(const Observer *self, Scip *scip, Row **rows, int num_rows) {
    double infinity = SCIPinfinity(scip);
    Py_ssize_t start = 0;
    if (!self->valid || num_rows != self->num_rows) return 0;
    for (int r = 0; r < num_rows; r++) {
        int size = SCIProwGetNLPNonz(rows[r]);
        if (size != self->row_size[r] || finite_sides(rows[r], infinity) != self->side[r] ||
            positive_norm(rows[r]) != self->norm[r] ||
            (size > 0 &&
             (memcmp(SCIProwGetCols(rows[r]), self->columns + start, size * sizeof(Col *)) != 0 ||
              memcmp(SCIProwGetVals(rows[r]), self->values + start, size * sizeof(double)) != 0)))
            return 0;
        start += size;
    }
    return 1;
}

static int remember_edges(Observer *self, Scip *scip, Row **rows, int num_rows) {
    double infinity = SCIPinfinity(scip);
    Py_ssize_t nonzeros = 0, start = 0;
    for (int r = 0; r < num_rows; r++) nonzeros += SCIProwGetNLPNonz(rows[r]);
    Observer_forget(self);
    self->row_size = malloc((num_rows + 1) * sizeof(int));
    self->side = malloc(num_rows + 1);
    self->norm = malloc((num_rows + 1) * sizeof(double));
    self->cosine = malloc((num_rows + 1) * sizeof(double));
    self->columns = malloc((nonzeros + 1) * sizeof(Col *));
    self->values = malloc((nonzeros + 1) * sizeof(double));
    if (!self->row_size || !self->side || !self->norm || !self->cosine || !self->columns ||
        !self->values)
        return -1;
    self->num_rows = num_rows;
    self->num_nonzeros = nonzeros;
    self->num_edges = self->num_constraints = 0;
    for (int r = 0; r < num_rows; r++) {
        int size = SCIProwGetNLPNonz(rows[r]);
        int sides;
        self->row_size[r] = size;
        self->side[r] = finite_sides(rows[r], infinity);
        self->norm[r] = positive_norm(rows[r]);
        sides = (self->side[r] & 1) + (self->side[r] >> 1);
        if (size > 0) {
            memcpy(self->columns + start, SCIProwGetCols(rows[r]), size * sizeof(Col *));
            memcpy(self->values + start, SCIProwGetVals(rows[r]), size * sizeof(double));
        }
        self->num_constraints += sides;
        self->num_edges += (Py_ssize_t)sides * size;
        start += size;
    }
    return 0;
}

/* Whether variables, their columns and their objective are those of the node before; remembers
 * them if not. */
static int variables_unchanged(Observer *self, Scip *scip, Var **vars, int num_variables) {
    int same = self->objective != NULL && num_variables == self->num_variables;
    double objective_norm = SCIPgetObjNorm(scip);
    if (!same) {
        free(self->objective);
        free(self->column_of);
        self->objective = malloc((num_variables + 1) * sizeof(double));
        self->column_of = malloc((num_variables + 1) * sizeof(Col *));
        self->num_variables = num_variables;
        if (!self->objective || !self->column_of) return -1;
    }
    if (objective_norm != self->objective_norm) same = 0;
    self->objective_norm = objective_norm;
    for (int i = 0; i < num_variables; i++) {
        double objective = SCIPvarGetObj(vars[i]);
        Col *column = SCIPvarIsInLP(vars[i]) ? SCIPvarGetCol(vars[i]) : NULL;
        if (same && objective == self->objective[i] && column == self->column_of[i]) continue;
        same = 0;
        self->objective[i] = objective;
        self->column_of[i] = column;
    }
    return same;
}

static void find_cosines(Observer *self, Scip *scip, Row **rows) {
    double epsilon = SCIPepsilon(scip);
    for (int r = 0; r < self->num_rows; r++) {
        double product = SCIProwGetNorm(rows[r]) * self->objective_norm, sum = 0.0;
        if (product > epsilon) {
            Col **columns = SCIProwGetCols(rows[r]);
            const double *values = SCIProwGetVals(rows[r]);
            int size = SCIProwGetNNonz(rows[r]);
            for (int k = 0; k < size; k++) sum += values[k] * SCIPcolGetObj(columns[k]);
            sum /= product;
        }
        self->cosine[r] = sum;
    }
}

static void fill_edges(const Observer *self, int64_t *index, float *value) {
    int64_t *of_constraint = index, *of_variable = index + self->num_edges;
    int64_t constraint = 0;
    Py_ssize_t start = 0;
    for (int r = 0; r < self->num_rows; r++) {
        int size = self->row_size[r];
        for (int side = 0; side < 2; side++) {
            double sign = side ? 1.0 : -1.0;
            if (!(self->side[r] >> side & 1)) continue;
            for (int k = 0; k < size; k++) {
                *of_constraint++ = constraint;
                *of_variable++ = SCIPcolGetVarProbindex(self->columns[start + k]);
                *value++ = (float)(sign * self->values[start + k] / self->norm[r]);
            }
            constraint++;
        }
        start += size;
    }
}

static void fill_constraints(const Observer *self, Scip *scip, Row **rows, float *out) {
    double epsilon = SCIPepsilon(scip), age_scale = (double)SCIPgetNLPs(scip) + AGE_OFFSET;
    double objective_norm = self->objective_norm > 0 ? self->objective_norm : 1.0;
    for (int r = 0; r < self->num_rows; r++) {
        double activity = SCIPgetRowLPActivity(scip, rows[r]), norm = self->norm[r];
        double dual = SCIProwGetDualsol(rows[r]), constant = SCIProwGetConstant(rows[r]);
        double age = SCIProwGetAge(rows[r]) / age_scale;
        for (int side = 0; side < 2; side++) {
            double sign = side ? 1.0 : -1.0, bound;
            if (!(self->side[r] >> side & 1)) continue;
            bound = side ? SCIProwGetRhs(rows[r]) : SCIProwGetLhs(rows[r]);
            out[0] = (float)(sign * (bound - constant) / norm);
            out[1] = (float)(sign * self->cosine[r]);
            out[2] = fabs(activity - bound) <= epsilon;
            out[3] = (float)(sign * dual / (norm * objective_norm));
            out[4] = (float)age;
            out += CONSTRAINT_FEATURES;
        }
    }
}

static void fill_variables(const Observer *self, Scip *scip, Var **vars, float *out) {
    double epsilon = SCIPepsilon(scip), feastol = SCIPfeastol(scip), infinity = SCIPinfinity(scip);
    double age_scale = (double)SCIPgetNLPs(scip) + AGE_OFFSET;
    double objective_norm = self->objective_norm > 0 ? self->objective_norm : 1.0;
    Sol *incumbent = SCIPgetBestSol(scip);
    for (int i = 0; i < self->num_variables; i++, out += VARIABLE_FEATURES) {
        Var *var = vars[i];
        Col *column = self->column_of[i];
        int type = SCIPvarGetImplType(var) != 0 ? IMPLICIT : SCIPvarGetType(var);
        double value = SCIPvarGetLPSol(var);
        double lower = column ? SCIPcolGetLb(column) : SCIPvarGetLbLocal(var);
        double upper = column ? SCIPcolGetUb(column) : SCIPvarGetUbLocal(var);
        int has_lower = fabs(lower) < infinity, has_upper = fabs(upper) < infinity;
        memset(out, 0, VARIABLE_FEATURES * sizeof(float));
        out[0] = (float)(self->objective[i] / objective_norm);
        out[1 + type] = 1.0f;
        out[5] = (float)has_lower;
        out[6] = (float)has_upper;
        out[8] = (float)value;
        if (type != CONTINUOUS) out[9] = (float)(value - floor(value + feastol));
        out[10] = has_lower && fabs(value - lower) <= epsilon;
        out[11] = has_upper && fabs(value - upper) <= epsilon;
        if (column) {
            out[7] = (float)(SCIPgetColRedcost(scip, column) / objective_norm);
            out[12] = (float)(SCIPcolGetAge(column) / age_scale);
        }
        if (incumbent) {
            out[13] = (float)SCIPgetSolVal(scip, incumbent, var);
            out[14] = (float)SCIPvarGetAvgSol(var);
        }
        out[15 + (column ? SCIPcolGetBasisStatus(column) : 3)] = 1.0f;
    }
}

static Scip *scip_of(PyObject *capsule) {
    if (!loaded) {
        PyErr_SetString(PyExc_RuntimeError, "SCIP's functions have not been loaded");
        return NULL;
    }
    return PyCapsule_GetPointer(capsule, "scip");
}

static PyObject *buffer(Py_ssize_t size) { return PyByteArray_FromStringAndSize(NULL, size); }

/* observe(scip) -> (variables, constraints, edges): bytearrays of float32 features, and edges
 * either None (those of the call before) or (int64 index, float32 values). */
static PyObject *Observer_observe(Observer *self, PyObject *capsule) {
    Scip *scip = scip_of(capsule);
    PyObject *variables = NULL, *constraints = NULL, *edges = NULL;
    Var **vars;
    Row **rows;
    int num_rows, same_variables, same_edges;
    if (scip == NULL) return NULL;
    vars = SCIPgetVars(scip);
    rows = SCIPgetLPRows(scip);
    num_rows = SCIPgetNLPRows(scip);
    same_edges = edges_unchanged(self, scip, rows, num_rows);
    if (!same_edges && remember_edges(self, scip, rows, num_rows) < 0) goto no_memory;
    same_variables = variables_unchanged(self, scip, vars, SCIPgetNVars(scip));
    if (same_variables < 0) goto no_memory;
    /* The same columns under other problem indices make other edges. */
    if (!(same_edges && same_variables)) find_cosines(self, scip, rows);
    variables = buffer((Py_ssize_t)self->num_variables * VARIABLE_FEATURES * sizeof(float));
    constraints = buffer(self->num_constraints * CONSTRAINT_FEATURES * sizeof(float));
    if (!variables || !constraints) goto failed;
    fill_variables(self, scip, vars, (float *)PyByteArray_AS_STRING(variables));
    fill_constraints(self, scip, rows, (float *)PyByteArray_AS_STRING(constraints));
    if (same_edges && same_variables) {
        edges = Py_None;
        Py_INCREF(edges);
    } else {
        PyObject *index = buffer(2 * self->num_edges * sizeof(int64_t));
        PyObject *values = buffer(self->num_edges * sizeof(float));
        if (index && values) {
            fill_edges(self, (int64_t *)PyByteArray_AS_STRING(index),
                       (float *)PyByteArray_AS_STRING(values));
            edges = PyTuple_Pack(2, index, values);
        }
        Py_XDECREF(index);
        Py_XDECREF(values);
        if (!edges) goto failed;
    }
    self->valid = 1;
    return Py_BuildValue("(NNN)", variables, constraints, edges);
no_memory:
    PyErr_NoMemory();
failed:
    Observer_forget(self);
    Py_XDECREF(variables);
    Py_XDECREF(constraints);
    return NULL;
}

static void Observer_dealloc(Observer *self) {
    Observer_forget(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Observer_methods[] = {
    {"observe", (PyCFunction)Observer_observe, METH_O, "The LP state as buffers."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject ObserverType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "solver_plugins._scip.Observer",
    .tp_basicsize = sizeof(Observer),
    .tp_dealloc = (destructor)Observer_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Observes one solve; keeps the edges of the node before.",
    .tp_methods = Observer_methods,
    .tp_new = PyType_GenericNew,
};

/* candidates(scip) -> (int64 problem indices, float64 pseudocost scores), in SCIP's order. */
static PyObject *candidates(PyObject *module, PyObject *capsule) {
    Scip *scip = scip_of(capsule);
    PyObject *indices, *scores;
    Var **vars;
    double *values;
    int count;
    (void)module;
    if (scip == NULL) return NULL;
    if (SCIPgetLPBranchCands(scip, &vars, &values, NULL, &count, NULL, NULL) != 1) {
        PyErr_SetString(PyExc_RuntimeError, "SCIP has no LP branching candidates at this node");
        return NULL;
    }
    indices = buffer(count * sizeof(int64_t));
    scores = buffer(count * sizeof(double));
    if (!indices || !scores) {
        Py_XDECREF(indices);
        Py_XDECREF(scores);
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        ((int64_t *)PyByteArray_AS_STRING(indices))[i] = SCIPvarGetProbindex(vars[i]);
        ((double *)PyByteArray_AS_STRING(scores))[i] =
            SCIPgetVarPseudocostScore(scip, vars[i], values[i]);
    }
    return Py_BuildValue("(NN)", indices, scores);
}

/* load(path) -> SCIP's major version: finds its functions in a library that is loaded already. */
static PyObject *load(PyObject *module, PyObject *arguments) {
    const char *path;
    void *library;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "s", &path)) return NULL;
    library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL) {
        PyErr_Format(PyExc_OSError, "%s is not loaded", path);
        return NULL;
    }
#define FIND(result, name, arguments)                                                              \
    *(void **)&name = dlsym(library, #name);                                                       \
    if (name == NULL) {                                                                            \
        PyErr_SetString(PyExc_OSError, "SCIP has no function " #name);                             \
        return NULL;                                                                               \
    }
    SCIP_FUNCTIONS(FIND)
#undef FIND
    loaded = 1;
    return PyLong_FromLong(SCIPmajorVersion());
}

static PyMethodDef functions[] = {
    {"load", load, METH_VARARGS, "Find SCIP's functions; returns its major version."},
    {"candidates", candidates, METH_O, "LP candidates and their pseudocost scores as buffers."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "solver_plugins._scip",
    .m_doc = "The LP state of a SCIP node, straight into buffers.", .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__scip(void) {
    PyObject *module;
    if (PyType_Ready(&ObserverType) < 0) return NULL;
    module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    Py_INCREF(&ObserverType);
    if (PyModule_AddObject(module, "Observer", (PyObject *)&ObserverType) < 0) {
        Py_DECREF(&ObserverType);
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
