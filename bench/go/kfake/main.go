// A kfake cluster of one broker on the loopback interface, in memory, until SIGTERM.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	port := flag.Int("port", 0, "0 for a free one")
	partitions := flag.Int("partitions", 4, "of topics that are created by their first use")
	flag.Parse()

	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.Ports(*port),
		kfake.AllowAutoTopicCreation(),
		kfake.DefaultNumPartitions(*partitions),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	fmt.Printf("kfake is ready at %s\n", cluster.ListenAddrs()[0])

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
}
