package policyfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"github.com/stretchr/testify/require"
)

// published is the schema as editors get it.
func published(t testing.TB) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "policy.schema.json"))
	require.NoError(t, err)
	var schema map[string]any
	require.NoError(t, json.Unmarshal(text, &schema))
	return schema
}

// conforms validates by JSON Schema, as far as the published one uses it. It knows
// nothing of the decoder's table. A keyword that it does not know is an error.
func conforms(schema map[string]any, v any) error {
	// In order, so that a fuzzed input takes the same way each time.
	for _, keyword := range slices.Sorted(maps.Keys(schema)) {
		want := schema[keyword]
		var err error
		switch keyword {
		case "$schema", "$id", "title", "description":
		case "type":
			err = hasType(want.(string), v)
		case "enum":
			found := false
			for _, one := range want.([]any) {
				found = found || one == v
			}
			if !found {
				err = fmt.Errorf("%v is none of %v", v, want)
			}
		case "pattern":
			// Go has no \u in its patterns.
			pattern := regexp.MustCompile(`\\u0000`).ReplaceAllString(want.(string), `\x00`)
			if s, ok := v.(string); ok && !regexp.MustCompile(pattern).MatchString(s) {
				err = fmt.Errorf("%q does not match %s", s, pattern)
			}
		case "minimum", "maximum", "exclusiveMinimum":
			n, ok := number(v)
			bound := want.(float64)
			if ok && (keyword == "minimum" && n < bound || keyword == "maximum" && n > bound || keyword == "exclusiveMinimum" && n <= bound) {
				err = fmt.Errorf("%v: %s %v", n, keyword, bound)
			}
		case "items":
			if items, ok := v.([]any); ok {
				for _, item := range items {
					if err == nil {
						err = conforms(want.(map[string]any), item)
					}
				}
			}
		case "required":
			for _, name := range want.([]any) {
				if object, ok := v.(map[string]any); ok && object[name.(string)] == nil {
					err = fmt.Errorf("%s is missing", name)
				}
			}
		case "properties", "additionalProperties", "propertyNames":
			if object, ok := v.(map[string]any); ok {
				err = objectConforms(schema, object)
			}
		default:
			err = fmt.Errorf("keyword %s", keyword)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func objectConforms(schema, object map[string]any) error {
	properties, _ := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(object)) {
		v := object[name]
		if names, ok := schema["propertyNames"].(map[string]any); ok {
			if err := conforms(names, name); err != nil {
				return err
			}
		}
		property, ok := properties[name].(map[string]any)
		if !ok {
			switch rest := schema["additionalProperties"].(type) {
			case map[string]any:
				property = rest
			default:
				return fmt.Errorf("%s is not known", name)
			}
		}
		if err := conforms(property, v); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func number(v any) (float64, bool) {
	switch n := v.(type) {
	case int64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

func hasType(want string, v any) error {
	ok := false
	switch v.(type) {
	case string:
		ok = want == "string"
	case bool:
		ok = want == "boolean"
	case int64:
		ok = want == "integer" || want == "number"
	case float64:
		ok = want == "number"
	case []any:
		ok = want == "array"
	case map[string]any:
		ok = want == "object"
	}
	if !ok {
		return fmt.Errorf("%T is no %s", v, want)
	}
	return nil
}

// requireSchema asks the published schema to take what the decoder took.
func requireSchema(t testing.TB, schema map[string]any, data []byte) {
	t.Helper()
	var document map[string]any
	if err := toml.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	if err := conforms(schema, document); err != nil {
		t.Fatalf("the decoder takes it and the schema does not: %v", err)
	}
}

// What is wrong in form is wrong for an editor too.
func TestSchemaRefuses(t *testing.T) {
	schema := published(t)
	for _, good := range []string{
		"version = 1", "version = 1\n[network]\ndomains = [\"example.com\", \"*.a.b:8443\", \"db:5432=10.0.0.0/8,fd00::1\"]", "version = 1\n[agent.any.paths]\nro = [\"${home}\"]", "version = 1\n[limits]\ncpus = 1\nmemory = \"2GiB\"\ntimeout = \"1h30m\"",
	} {
		requireSchema(t, schema, []byte(good))
	}
	for _, bad := range []string{
		"", "version = 2", "version = \"1\"", "version = 1\nx = 1", "version = 1\ngroups = [\"nod\"]", "version = 1\ngateway = \"off\"",
		"version = 1\n[paths]\nro = [\"a\"]", "version = 1\n[paths]\ndeny = []", "version = 1\n[[paths.rule]]\npath = \"/a\"", "version = 1\n[network]\nconnect_tcp = [0]",
		"version = 1\n[network]\nbind_tcp = [65536]", "version = 1\n[network]\nconnect = [\"example.com:1\"]", "version = 1\n[network]\ndomains = [\"*\"]", "version = 1\n[network]\ndomains = [\"bücher.example\"]", "version = 1\n[env]\nset = { A = 1 }", "version = 1\n[env.set]\n\"A=\" = \"\"",
		"version = 1\n[limits]\nmemory = \"2GB\"", "version = 1\n[limits]\ntimeout = \"10\"", "version = 1\n[limits]\ncpus = 0.0", "version = 1\n[limits]\npids = 1.5", "version = 1\n[agent.claude]\nversion = 1",
	} {
		var document map[string]any
		require.NoError(t, toml.Unmarshal([]byte(bad), &document))
		require.Error(t, conforms(schema, document), bad)
		path := write(t, realDir(t), "p.toml", bad)
		_, _, err := Load(path, testPlace())
		require.Error(t, err, bad)
	}
}
