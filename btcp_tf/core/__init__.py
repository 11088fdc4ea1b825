"""What everyone needs: settings, command lines, files, messages. No TensorFlow."""
