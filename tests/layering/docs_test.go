package layering

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// brokenLinks returns the relative links of a Markdown text in dir that lead to
// no file. Anchors within a page are left aside.
func brokenLinks(dir, text string) []string {
	var broken []string
	for _, m := range markdownLink.FindAllStringSubmatch(text, -1) {
		target, _, _ := strings.Cut(m[1], "#")
		if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(target))); err != nil {
			broken = append(broken, target)
		}
	}
	return broken
}

func TestLinksOfTheDocumentsLeadSomewhere(t *testing.T) {
	root, _ := goList(t)
	pages := 0
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && (name == "node_modules" || name == "testdata" || name == ".git") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(file) != ".md" {
			return nil
		}
		pages++
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, target := range brokenLinks(filepath.Dir(file), string(text)) {
			t.Errorf("%s: link to %s, which is not there", file, target)
		}
		return nil
	})
	require.NoError(t, err)
	require.NotZero(t, pages)
}

// The README's program is one that compiles.
func TestTheExampleOfTheReadmeCompiles(t *testing.T) {
	root, _ := goList(t)
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	example, err := os.ReadFile(filepath.Join(root, "composition", "example_test.go"))
	require.NoError(t, err)
	body := regexp.MustCompile(`(?ms)^func ask\(.*?^}$`).Find(example)
	require.NotEmpty(t, body)
	require.Contains(t, string(readme), "\n"+string(body)+"\n```\n", "copy the function of composition/example_test.go")
}

func TestBrokenLinks(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "there.md"), nil, 0o600))
	require.Equal(t, []string{"missing.md", "sub/missing.go"}, brokenLinks(dir,
		"[a](there.md) [b](missing.md) [c](there.md#part) [d](#part) [e](https://example.org/x) [f](sub/missing.go#L1)"))
}
