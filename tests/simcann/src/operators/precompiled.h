// What takes most of the time to compile, once for all files of operators (see run.py). No file needs to include it.
#pragma once

// The header of any operator stands for the large headers that all of them include.
#include <ATen/ops/add.h>

#include "precision.h"
