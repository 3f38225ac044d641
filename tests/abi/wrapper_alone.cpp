#include "deltarelay/deltarelay.hpp"
