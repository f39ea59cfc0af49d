// Command image writes an OCI image layout: for each processor, an image with one layer, which has the
// programs and empty directories, on an empty base. It needs no container engine. The same input makes the same
// bytes.
//
//	image -out DIR -version VERSION -created SECONDS amd64=PROGRAMS arm64=PROGRAMS
//
// PROGRAMS is the folder of the programs for that processor. The layout is written to DIR, which
// must not exist.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	out := flag.String("out", "", "the folder of the layout")
	version := flag.String("version", "", "the version, which is also the name of the image in the layout")
	created := flag.Int64("created", 0, "the time of the image and of its files, in seconds since 1970")
	flag.Parse()
	if err := run(*out, *version, time.Unix(*created, 0).UTC(), flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// The media types of the image specification.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// descriptor refers to a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type index struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Manifests     []descriptor      `json:"manifests"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type config struct {
	platform
	Created time.Time `json:"created"`
	Config  struct {
		Env        []string          `json:"Env"`
		Entrypoint []string          `json:"Entrypoint"`
		Cmd        []string          `json:"Cmd"`
		Labels     map[string]string `json:"Labels"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// layout is the folder of an image layout.
type layout string

// run writes one image for each "PROCESSOR=PROGRAMS" of folders, and one index of them, which has the version as name.
func run(out, version string, created time.Time, folders []string) error {
	if out == "" || version == "" || len(folders) == 0 {
		return errors.New("usage: image -out DIR -version VERSION -created SECONDS PROCESSOR=PROGRAMS ...; all are required")
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	l := layout(out)
	if err := os.MkdirAll(filepath.Join(out, "blobs/sha256"), 0o755); err != nil {
		return err
	}
	labels := map[string]string{
		"org.opencontainers.image.title":   "ironvip",
		"org.opencontainers.image.version": version,
		"org.opencontainers.image.source":  "https://github.com/ironvip/ironvip",
		"org.opencontainers.image.created": created.Format(time.RFC3339),
	}
	images := index{SchemaVersion: 2, MediaType: typeIndex, Annotations: labels}
	for _, folder := range folders {
		arch, programs, ok := strings.Cut(folder, "=")
		if !ok {
			return fmt.Errorf("invalid argument %q: use PROCESSOR=PROGRAMS", folder)
		}
		image, err := l.image(arch, programs, created, labels)
		if err != nil {
			return err
		}
		images.Manifests = append(images.Manifests, image)
	}
	all, err := l.json(typeIndex, images)
	if err != nil {
		return err
	}
	all.Annotations = map[string]string{"org.opencontainers.image.ref.name": version}
	b, err := json.Marshal(index{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{all}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "index.json"), b, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644)
}

// image writes the image for one processor and returns the descriptor of its manifest.
func (l layout) image(arch, programs string, created time.Time, labels map[string]string) (descriptor, error) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	plain := sha256.New()
	if err := writeLayer(io.MultiWriter(z, plain), programs, created); err != nil {
		return descriptor{}, err
	}
	if err := z.Close(); err != nil {
		return descriptor{}, err
	}
	layer, err := l.blob(typeLayer, packed.Bytes())
	if err != nil {
		return descriptor{}, err
	}
	c := config{platform: platform{Architecture: arch, OS: "linux"}, Created: created}
	c.Config.Env = []string{"PATH=/usr/bin"}
	c.Config.Entrypoint = []string{"/usr/bin/ironvip"}
	c.Config.Cmd = []string{"agent", "--config", "/etc/ironvip"}
	c.Config.Labels = labels
	c.RootFS.Type = "layers"
	c.RootFS.DiffIDs = []string{"sha256:" + hex.EncodeToString(plain.Sum(nil))}
	configBlob, err := l.json(typeConfig, c)
	if err != nil {
		return descriptor{}, err
	}
	d, err := l.json(typeManifest, manifest{SchemaVersion: 2, MediaType: typeManifest, Config: configBlob, Layers: []descriptor{layer}, Annotations: labels})
	d.Platform = &c.platform
	return d, err
}

// directories are those that the programs use. Their mounts come from the operator.
var directories = []string{"etc", "etc/ironvip", "run", "run/ironvip", "run/ironvip-announcer", "run/ironvip-proxy", "tmp", "usr", "usr/bin", "usr/libexec", "usr/libexec/ironvip", "var", "var/lib", "var/lib/ironvip"}

// writeLayer writes the files of an image as a tar archive.
func writeLayer(w io.Writer, programs string, created time.Time) error {
	t := tar.NewWriter(w)
	for _, dir := range directories {
		mode := int64(0o755)
		if dir == "tmp" {
			mode = 0o1777
		}
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: mode, ModTime: created}); err != nil {
			return err
		}
	}
	for _, file := range []string{"usr/bin/ironvip", "usr/libexec/ironvip/ironvip-announcer", "usr/libexec/ironvip/ironvip-proxy"} {
		b, err := os.ReadFile(filepath.Join(programs, path.Base(file)))
		if err != nil {
			return err
		}
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file, Mode: 0o755, Size: int64(len(b)), ModTime: created}); err != nil {
			return err
		}
		if _, err := t.Write(b); err != nil {
			return err
		}
	}
	return t.Close()
}

// json writes a value as a blob.
func (l layout) json(mediaType string, value any) (descriptor, error) {
	b, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, err
	}
	return l.blob(mediaType, b)
}

// blob writes a blob under its digest.
func (l layout) blob(mediaType string, b []byte) (descriptor, error) {
	sum := sha256.Sum256(b)
	name := hex.EncodeToString(sum[:])
	d := descriptor{MediaType: mediaType, Digest: "sha256:" + name, Size: int64(len(b))}
	return d, os.WriteFile(filepath.Join(string(l), "blobs/sha256", name), b, 0o644)
}
