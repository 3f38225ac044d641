"""scripts/api_reference.py on a small header: what it says of each declaration, and that nothing is left out."""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True

import api_reference  # noqa: E402

HEADER = """/* A library.
 *
 *     dr_go();      a call
 *
 * Conventions
 *   - Sizes come
 *     first.
 */
#ifndef A
#define A
extern "C" {

/* ---- status ------------------------------------ */

typedef int32_t dr_status;
enum {
  DR_SUCCESS = 0,
  DR_INVALID = 1 /* wrong | bad */
};

enum {              /* dr_box.kind: which one */
       DR_BIG = 1,  /* large */
       /* Everything
        * that is small. */
       DR_SMALL = 2
};

/* A box.
 *
 * Second paragraph. */
typedef struct dr_box {
  uint32_t size; /* sizeof(dr_box) */

  /* Sides, in
   * metres. */
  int64_t width, height;
  const char*
      name; /* may be NULL */
  char tag[8];
} dr_box;

static inline void dr_box_init(dr_box* box) {
  memset(box, 0, sizeof *box);
}

/* Opens and closes. */
DR_API dr_status dr_open(const dr_box* box,
                         int32_t how);
DR_API void dr_close(dr_box* box); /* NULL is fine */

typedef struct dr_plan dr_plan;
}
#endif
"""


class Reference(unittest.TestCase):
    def setUp(self):
        self.made = api_reference.reference(HEADER)

    def test_introduction(self):
        self.assertTrue(self.made.startswith("A library.\n\n```c\ndr_go();      a call\n```\n"), self.made[:80])
        self.assertIn("### Conventions\n\n- Sizes come first.\n", self.made)

    def test_enumerations(self):
        self.assertIn("### Status\n\n#### dr_status\n", self.made)
        self.assertIn("| `DR_INVALID` | 1 | wrong \\| bad |", self.made)
        self.assertIn("#### dr_box.kind\n\nWhich one.\n", self.made)
        self.assertIn("| `DR_SMALL` | 2 | Everything that is small. |", self.made)

    def test_structures(self):
        self.assertIn("#### dr_box\n\nA box.\n\nSecond paragraph.\n", self.made)
        self.assertIn("|  |  | Sides, in metres. |\n| `width`, `height` | `int64_t` |  |", self.made)
        self.assertIn("| `name` | `const char*` | may be NULL |", self.made)
        self.assertIn("| `tag[8]` | `char` |  |", self.made)

    def test_functions(self):
        self.assertIn("#### dr_open, dr_close\n", self.made)
        self.assertIn("dr_status dr_open(const dr_box* box, int32_t how);\nvoid dr_close(dr_box* box);\n", self.made)
        self.assertIn("`dr_close`: NULL is fine.\n", self.made)
        self.assertNotIn("memset", self.made)
        self.assertIn("#### dr_plan\n", self.made)


class Whole(unittest.TestCase):
    def test_every_name_of_the_header_is_there(self):
        headers = [path.read_text(encoding="utf-8") for path in api_reference.HEADERS]
        made = "".join(map(api_reference.reference, headers))
        header = "".join(headers)
        code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
        code = re.sub(r"^#.*$", "", code, flags=re.MULTILINE)
        names = set(re.findall(r"\b(?:dr_\w+(?=\()|DR_[A-Z]\w+)", code)) - {"DR_API"}
        self.assertGreater(len(names), 60)
        self.assertEqual(sorted(name for name in names if name not in made), [])


if __name__ == "__main__":
    unittest.main()
